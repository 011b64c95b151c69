"""The disk space of dropped ranges is freed, a close doesn't wait for it, and a kill around a drop loses nothing."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.stores.engines.base import Changes, Resources
from holdfast.stores.engines.reclaim import Range, Reclaimer
from holdfast.stores.engines.registry import open_engine
from holdfast.stores.engines.rocksdb import RocksEngine
from tests.stores import dropping
from tests.stores.making import specs

ROOT = Path(__file__).parents[3]


def opened(folder: Path) -> RocksEngine:
    engine = open_engine("rocksdb", folder, specs(dropping.FAMILIES), Resources(dropping.MEMORY))
    assert isinstance(engine, RocksEngine)
    return engine


def fill(engine: RocksEngine, entries: int) -> None:
    keys = pa.array([b"\x02%08d" % n for n in range(entries)])
    values = pa.array([os.urandom(100) for _ in range(entries)])
    engine.apply([("windows", Changes(keys, values))], dropping.mark(1))
    engine.flush()


def test_the_disk_space_of_a_dropped_range_is_freed(tmp_path: Path) -> None:
    engine = opened(tmp_path / "state")
    fill(engine, 100_000)
    before = engine.disk_bytes()
    engine.drop("windows", b"\x02", b"\x03")
    assert engine.wait_until_reclaimed(60)
    engine.flush()
    assert before > 10_000_000
    assert engine.disk_bytes() < 1_000_000
    engine.close()


def test_a_close_stops_a_running_compaction_and_keeps_other_entries(tmp_path: Path) -> None:
    engine = opened(tmp_path / "state")
    fill(engine, 200_000)
    changes = Changes(pa.array([b"\x01here"]), pa.array([b"yes"]))
    engine.apply([("windows", changes), ("plain", changes)], dropping.mark(2))
    engine.drop("windows", b"\x02", b"\x03")
    engine.close()
    again = opened(tmp_path / "state")
    assert again.mark() == dropping.mark(2)
    for family in dropping.FAMILIES:
        assert list(again.view().scan(family, b"", None)) == [(b"\x01here", b"yes")]
    again.close()


@pytest.mark.parametrize("step", ["dropped", "flushed", "reclaiming"])
@pytest.mark.parametrize("version", [3, 4, 7])
def test_a_kill_around_a_drop_loses_nothing(tmp_path: Path, step: str, version: int) -> None:
    folder = tmp_path / "state"
    command = [sys.executable, "-m", "tests.lean", "tests.stores.dropping", str(folder), f"{step}@{version}"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    assert subprocess.run(command, env=environment, cwd=ROOT, check=False, timeout=60).returncode == -signal.SIGKILL
    engine = opened(folder)
    mark = engine.mark()
    whole = mark.version if mark else 0
    furthest = max(whole, (mark.applying if mark else None) or 0)
    for family in dropping.FAMILIES:
        found = dict(engine.view().scan(family, b"", None))
        assert found.items() <= dropping.everything(family, furthest).items() or furthest > whole
        # Complete versions have all entries but the dropped ones, and those may be back.
        wanted = {
            k: v
            for k, v in dropping.everything(family, whole).items()
            if k[:1] == b"\x01" or k >= dropping.edge(version)
        }
        assert furthest > whole or wanted.items() <= found.items()
    dropping.catch_up(engine, dropping.VERSIONS)
    for family in dropping.FAMILIES:
        assert dict(engine.view().scan(family, b"", None)) == dropping.kept(family, dropping.VERSIONS)
    engine.close()


def test_ranges_are_compacted_in_order_and_once() -> None:
    go, seen = threading.Event(), list[Range]()

    def compact(range_: Range) -> None:
        go.wait()
        seen.append(range_)

    reclaimer = Reclaimer(compact)
    assert reclaimer.wait(0)
    for n in (1, 2, 2, 3):
        reclaimer.add(("f", b"%d" % n, b"9"))
    assert not reclaimer.wait(0)
    go.set()
    assert reclaimer.wait(60)
    assert seen == [("f", b"1", b"9"), ("f", b"2", b"9"), ("f", b"3", b"9")]
    reclaimer.end()
    reclaimer.add(("f", b"4", b"9"))
    assert reclaimer.wait(60)
    assert len(seen) == 3


def test_a_forgotten_view_keeps_no_files(tmp_path: Path) -> None:
    engine = opened(tmp_path / "state")
    fill(engine, 50_000)
    gc.disable()  # its references alone must free it
    try:
        assert next(engine.view().scan("windows", b"", None))[0] == b"\x0200000000"
        engine.drop("windows", b"\x02", b"\x03")
        assert engine.wait_until_reclaimed(60)
        assert engine.properties("windows")["total-sst-files-size"] < 100_000
    finally:
        gc.enable()
    engine.close()
