"""The soak's comparison finds what is wrong, and nothing else."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.apps import NOON, write
from tests.soak.app import RECORD
from tests.soak.comparison import Comparison
from tests.soak.history import Made

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ALL = "levels+best+copy/continue"
RELEASES = ["/continue", ALL, "/continue", ALL, ALL]
TOTALS: dict[int, list[tuple[str, int, int, int | None]]] = {
    1: [("ann", 1, 10, None), ("bob", 1, 10, None)],
    2: [("ann", 2, 30, 20), ("bob", 2, 30, 20)],
    3: [("ann", 3, 60, None), ("bob", 3, 60, None)],
    4: [("ann", 4, 100, 40), ("bob", 4, 100, 40)],
    5: [("ann", 5, 150, 50), ("bob", 5, 150, 50)],
}
LEVELS = {2: [(7, 2)], 4: [(7, 4)], 5: [(7, 6)]}


def deliver(folder: Path, version: int, rows: list[dict[str, Any]]) -> None:
    """Writes a version as the file sink does."""
    (folder / "_versions").mkdir(parents=True, exist_ok=True)
    name = f"{version:020d}-0_0-0.parquet"
    pq.write_table(pa.Table.from_pylist([{**row, "_version": version} for row in rows]), folder / name)
    mark = {"version": version, "files": [{"file": name}]}
    (folder / "_versions" / f"{version:020d}.json").write_text(json.dumps(mark))


def rows_of(version: int) -> list[dict[str, Any]]:
    rows = [dict(zip(("player", "games", "points", "best"), row, strict=True)) for row in TOTALS[version]]
    return [row if row["best"] is not None else {k: v for k, v in row.items() if k != "best"} for row in rows]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A soak of five versions with one input file each. The one before a kill has not reached the sinks that went."""
    sources = tmp_path / "base" / "soak" / "checkpoint" / "sources" / "0"
    sources.mkdir(parents=True)
    for n in range(5):
        records = [{"player": p, "level": 7, "points": 10 * (n + 1), "at": NOON} for p in ("ann", "bob")]
        write(tmp_path / "input", n, records, RECORD)
        entry = {"path": f"file://{tmp_path}/input/{n:04d}.parquet", "timestamp": 0, "batchId": n}
        (sources / str(n)).write_text(f"v1\n{json.dumps(entry)}")
        deliver(tmp_path / "out", n + 1, rows_of(n + 1))
    for version in (4, 5):
        deliver(tmp_path / "copy", version, rows_of(version))
        deliver(tmp_path / "levels", version, [{"level": level, "games": n} for level, n in LEVELS[version]])
    stores = {
        "totals": [{"key": key, "games": n, "points": p, "best": b} for key, n, p, b in TOTALS[5]],
        "levels": [{"key": 7, "games": 6}],
    }
    (tmp_path / "stores.json").write_text(json.dumps(stores))
    made = [Made(n + 1, n, release, 1) for n, release in enumerate(RELEASES)]
    (tmp_path / "history.json").write_bytes(msgspec.json.encode(made))
    return tmp_path


def differing(spark: SparkSession, folder: Path) -> dict[str, int]:
    made = msgspec.json.decode((folder / "history.json").read_bytes(), type=list[Made])
    return {each.what: each.different for each in Comparison(spark, folder, made).all() if each.different}


def test_a_soak_without_a_fault(spark: SparkSession, folder: Path) -> None:
    assert differing(spark, folder) == {}


def wrong_store(folder: Path) -> None:
    text = (folder / "stores.json").read_text()
    (folder / "stores.json").write_text(text.replace('"best": 50', '"best": 51', 1))


def lost_version(folder: Path) -> None:
    for path in (folder / "copy").rglob("*5-0_0-0.parquet"):
        path.unlink()
    (folder / "copy" / "_versions" / f"{5:020d}.json").unlink()


def row_twice(folder: Path) -> None:
    deliver(folder / "out", 3, [*rows_of(3), rows_of(3)[0]])


def continued_store(folder: Path) -> None:
    text = (folder / "history.json").read_text()
    (folder / "history.json").write_text(text.replace(ALL, "levels+best+copy/start_over"))


def test_faults_are_found(spark: SparkSession, folder: Path) -> None:
    for fault in (wrong_store, lost_version, row_twice, continued_store):
        fault(folder)
    assert differing(spark, folder) == {
        "store totals": 1,
        "store levels": 1,
        "rows of sink out": 1,
        "rows of sink copy": 2,
        "rows of sink levels": 2,
    }
