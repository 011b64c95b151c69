"""The options of Spark's JVMs in tests, and the archive of Spark's classes that they start from.

    python -m tests.class_archive          makes .tools/spark.jsa, as scripts/setup.sh does

A JVM looks for every class of Spark in up to 279 files, reads and verifies it. From the archive it starts a session and
runs one query in half the processor time: 4.1 s instead of 8.1. A JVM of another release of Java, or with other files
of Spark, does without the archive.
"""

import os
import tempfile
from pathlib import Path

from pyspark import SparkContext

import holdfast as hf
from tests.apps import finish, game, read, settings, write

ARCHIVE = Path(__file__).parent.parent / ".tools" / "spark.jsa"

# Spark's JVMs live for seconds here, too short for the second compiler and the parallel collector to pay off. Without
# the second compiler the room for compiled code is 48 MB, and clearing it took 3 to 5 % of a JVM's time.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:ReservedCodeCacheSize=240m"


def java_options() -> str:
    """For JDK_JAVA_OPTIONS. The JVM's own warnings are off: Spark's launcher can't use the archive, and says so."""
    return f'{_SHORT_LIVED} -XX:SharedArchiveFile="{ARCHIVE}" -Xlog:disable' if ARCHIVE.exists() else _SHORT_LIVED


def make(archive: Path) -> None:
    """Runs an app on Spark and archives the classes that it has loaded."""
    unfinished = archive.with_suffix(".unfinished")
    os.environ["JDK_JAVA_OPTIONS"] = f'{_SHORT_LIVED} -XX:ArchiveClassesAtExit="{unfinished}" -Xlog:disable'
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder))
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.proc.stdin.close()  # ends the JVM, which then writes the archive
    assert gateway.proc.wait() == 0, "a JVM that starts from half an archive crashes"
    unfinished.rename(archive)


def run(folder: Path) -> None:
    chosen = hf.SparkSettings(master="local[2]", config={"spark.ui.enabled": "false"})
    app = hf.App("archive", settings=settings(folder, spark=chosen))
    app.spark.sparkContext.setLogLevel("ERROR")
    write(folder / "input", 1, [game("ann"), game("bob"), {**game("cleo"), "at": None}])
    stream = app.stream(read(app.spark, folder / "input"), key="player", timestamp="at")
    players = stream.with_column("points", "points + 1").group_by().aggregate(points=hf.sum("points")).store("players")
    stream.group_by().window(hf.tumbling("1h", grace="0s")).count().store("hours")
    stream.join(players, name="totals", prefix="total_")
    finish(app, "players")
    app.spark.stop()


if __name__ == "__main__":
    make(ARCHIVE)
