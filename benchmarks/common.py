"""What the benchmarks share: a Spark session, data, tables, plots and the last line of JSON."""

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import track
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() else 120)
PLOTS = Path("benchmarks/plots")


def spark_session(**config: str) -> SparkSession:
    """A local session with two cores and enough memory, and nothing else changed."""
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
    """A folder for the run, removed after it. HOLDFAST_BENCH_DIR chooses the disk."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-bench-{prefix}-", dir=os.environ.get("HOLDFAST_BENCH_DIR")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keys(kind: str, number: int, records: int, dice: np.random.Generator) -> npt.NDArray[np.int64]:
    """Keys of one batch: uniform over all, or Zipf with a few that are everywhere."""
    if kind == "uniform":
        return dice.integers(0, number, records)
    ranks = np.arange(1, number + 1, dtype=np.float64)
    weights = 1.0 / ranks
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), dice.random(records))
    return np.random.default_rng(7).permutation(number)[np.minimum(drawn, number - 1)]


def write_batches(folder: Path, kind: str, *, keys_in_all: int, records: int, batches: int, files: int = 2) -> None:
    """Parquet files, `files` of them a batch, named and dated in the order they are to be read."""
    dice = np.random.default_rng(42)
    folder.mkdir(parents=True)
    for batch in track(range(batches), description=f"writing {kind} data", console=console, transient=True):
        drawn = keys(kind, keys_in_all, records, dice)
        for n, part in enumerate(np.array_split(drawn, files)):
            path = folder / f"{batch:05d}-{n}.parquet"
            pq.write_table(pa.table({"key": part}), path)
            os.utime(path, (1_700_000_000 + batch * 10 + n, 1_700_000_000 + batch * 10 + n))


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
    """A line a contender, written beside the benchmarks."""
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
    """The last line: one flat JSON object."""
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps(rounded), flush=True)


def read(spark: SparkSession, data: Path, files: int = 2) -> DataFrame:
    return spark.readStream.schema("key long").option("maxFilesPerTrigger", files).parquet(str(data))


def seconds_of(query: StreamingQuery) -> list[float]:
    """How long each batch with rows took."""
    return [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"] > 0]
