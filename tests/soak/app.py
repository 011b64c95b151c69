"""The app of the soak, in several releases, on real Spark.

python -m tests.soak.app <folder> <release> <file>             runs until it is stopped or killed
    python -m tests.soak.app <folder> <release> <file> --finish    processes all input and writes the stores as JSON

The file is created once the app runs.
"""

import logging
import sys
import threading
from pathlib import Path

import msgspec
import pyarrow as pa

import holdfast as hf
from tests.apps import entries_of
from tests.soak.release import Release

RECORD = pa.schema(
    [("player", pa.string()), ("level", pa.int64()), ("points", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
SCHEMA = "player string, level long, points long, at timestamp"
HEAP = "heap"
"""The file with the MiB that Spark's heap has after a garbage collection."""
_HEAP_EVERY = 20
_SPARK = {
    "spark.ui.enabled": "false",
    # All of the heap is in memory from the start, so that what the process gains is not heap.
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-Xms512m -XX:+AlwaysPreTouch",
}


def build(folder: Path, release: Release) -> hf.App:
    settings = hf.Settings(
        base_dir=str(folder / "base"),
        partitions=2,
        # With this retention the soak sees every commit before it is cleaned.
        log=hf.LogSettings(inline_bytes="1KiB", retention="20s", clean_interval="1s"),
        snapshots=hf.SnapshotSettings(bytes="256KiB", age="5s"),
        state=hf.StateSettings(flush_versions=8),
        rest=hf.RestSettings(port=0),
        returned_stores={"levels": release.returned},
        spark=hf.SparkSettings(master="local[2]", config=_SPARK),
    )
    app = hf.App("soak", settings=settings)
    app.spark.sparkContext.setLogLevel("ERROR")
    source = app.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 50).parquet(str(folder / "input"))
    stream = app.stream(source, key="player", timestamp="at")
    aggregates = {"games": hf.count(), "points": hf.sum("points")}
    if release.best:
        aggregates["best"] = hf.max("points", from_now=True)
    totals = stream.group_by().aggregate(**aggregates).store("totals")
    totals.sink(hf.files(str(folder / "out"), version_column=True), name="files")
    if release.copy:
        totals.sink(hf.files(str(folder / "copy"), version_column=True), name="copy")
    if release.levels:
        levels = stream.group_by("level").aggregate(games=hf.count()).store("levels")
        levels.sink(hf.files(str(folder / "levels"), version_column=True), name="levels")
    return app


def finish(app: hf.App, folder: Path, release: Release) -> None:
    """Processes the rest of the input and writes what the stores have."""
    stores = ["totals", *(["levels"] if release.levels else [])]
    with app:
        app.process_all_available()
        found = {store: [{"key": key, **row} for key, row in entries_of(app, store).items()] for store in stores}
    (folder / "stores.json").write_bytes(msgspec.json.encode(found))


def note_heap(app: hf.App, file: Path) -> None:
    """Writes down how much of Spark's heap is in use, again and again, in a thread that ends with the process."""
    jvm = app.spark.sparkContext._jvm
    assert jvm is not None
    runtime = jvm.java.lang.Runtime.getRuntime()

    def note() -> None:
        never = threading.Event()
        while not never.wait(_HEAP_EVERY):
            runtime.gc()
            file.write_text(str((runtime.totalMemory() - runtime.freeMemory()) / (1 << 20)))

    threading.Thread(target=note, name="heap", daemon=True).start()


def main(folder: Path, release: Release, running: Path, *, finishing: bool) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    app = build(folder, release)
    app.on_state(lambda old, new: running.touch() if new is hf.AppState.RUNNING else None)
    if finishing:
        finish(app, folder, release)
    else:
        note_heap(app, folder / HEAP)
        app.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Release.parse(sys.argv[2]), Path(sys.argv[3]), finishing="--finish" in sys.argv)
