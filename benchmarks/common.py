"""What the benchmarks share: a Spark session, data, tables, plots, and the results as a last line of JSON."""

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from rich.progress import track
from rich.table import Table

import holdfast as hf

console = Console(width=None if sys.stdout.isatty() else 120)
PLOTS = Path("benchmarks/plots")
SPARK_ON_ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
PARTITIONS = 2
FSYNC = False
"""Spark writes its checkpoint files to a local disk without fsync, so Holdfast's log has none here either."""


START = 1_700_000_000
"""The date of the first file."""


def spark_session(**config: str) -> SparkSession:
    """A local session with two cores and enough memory."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        **config,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A folder for the run, deleted afterwards. HOLDFAST_BENCH_DIR chooses the disk."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-bench-{prefix}-", dir=os.environ.get("HOLDFAST_BENCH_DIR")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keys(kind: str, number: int, records: int, dice: np.random.Generator) -> npt.NDArray[np.int64]:
    """Keys of one batch: uniformly distributed, or Zipf, with a few very frequent keys."""
    if kind == "uniform":
        return dice.integers(0, number, records)
    ranks = np.arange(1, number + 1, dtype=np.float64)
    weights = 1.0 / ranks
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), dice.random(records))
    return np.random.default_rng(7).permutation(number)[np.minimum(drawn, number - 1)]


Columns = Callable[[npt.NDArray[np.int64], int, np.random.Generator], pa.Table]
"""The columns of records with these keys, in the batch with this number."""


def only_key(drawn: npt.NDArray[np.int64], batch: int, dice: np.random.Generator) -> pa.Table:
    return pa.table({"key": drawn})


def write_batches(
    folder: Path,
    kind: str,
    *,
    keys_in_all: int,
    records: int,
    batches: int,
    files: int = 2,
    columns: Columns = only_key,
    seed: int = 42,
) -> None:
    """Writes Parquet files, `files` per batch. Their names and dates have the order in which Spark must read them."""
    dice = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for batch in track(range(batches), description=f"writing {folder.name} data", console=console, transient=True):
        drawn = keys(kind, keys_in_all, records, dice)
        for n, part in enumerate(np.array_split(drawn, files)):
            path = folder / f"{batch:05d}-{n}.parquet"
            pq.write_table(columns(part, batch, dice), path)
            os.utime(path, (START + batch * 10 + n, START + batch * 10 + n))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left")
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right")
    for row in rows:
        table.add_row(*[f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in row])
    console.print(table)


def plot_lines(name: str, title: str, lines: Mapping[str, Sequence[float]], x: str, y: str) -> Path:
    """Plots one line per contender, into a file below benchmarks/plots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    for label, values in lines.items():
        axes.plot(range(1, len(values) + 1), values, label=label)
    axes.set(title=title, xlabel=x, ylabel=y, ylim=(0, None))
    axes.legend()
    PLOTS.mkdir(parents=True, exist_ok=True)
    path = PLOTS / f"{name}.png"
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
    return path


def finish(**figures: float | int | str | bool) -> None:
    """Prints the last line: one flat JSON object."""
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps(rounded), flush=True)


def bench_app(spark: SparkSession, work: Path, **settings: Any) -> hf.App:
    """An app whose log, state and checkpoint are in the folder of a run."""
    chosen = hf.Settings(
        base_dir=str(work),
        partitions=PARTITIONS,
        log=hf.LogSettings(fsync=FSYNC),
        rest=hf.RestSettings(port=0),
        **settings,
    )
    return hf.App("bench", settings=chosen, spark=spark)


def run_app(app: hf.App) -> list[float]:
    """Runs an app over all its input. Returns the seconds of each batch."""
    with app:
        app.process_all_available()
        return seconds_of(app.query)


def contest(
    names: Sequence[str], run: Callable[[str, Path], list[float]], folder: Path, *, repeats: int, warm: int
) -> dict[str, list[float]]:
    """Runs contenders in turn, in an order that alternates, each time in a new folder.

    Returns the seconds of each one's batches, without the first `warm` of each run.
    """
    taken: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in names if repeat % 2 == 0 else names[::-1]:
            work = folder / f"work-{name}-{repeat}"
            seconds = run(name, work)
            console.print(f"  {name}: median {median(seconds[warm:]):.2f} s per batch")
            taken[name] += seconds[warm:]
            shutil.rmtree(work, ignore_errors=True)
    return taken


def read(spark: SparkSession, data: Path, files: int = 2, schema: str = "key long") -> DataFrame:
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(data))


def run_query(writer: DataStreamWriter, work: Path) -> list[float]:
    """Runs a streaming query over all its input. Returns the seconds of each batch."""
    query = writer.option("checkpointLocation", str(work / "checkpoint")).start()
    query.processAllAvailable()
    taken = seconds_of(query)
    query.stop()
    return taken


def seconds_of(query: StreamingQuery) -> list[float]:
    """The seconds of each batch with rows."""
    return [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"] > 0]
