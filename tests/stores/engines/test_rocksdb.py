"""RocksDB as an engine: kills, damaged files, full disks, one memory budget."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.stores.engines.base import Changes, DamagedState, DiskFull, Engine, EngineInUse, Resources
from holdfast.stores.engines.registry import open_engine
from tests.stores import history
from tests.stores.making import specs

ROOT = Path(__file__).parents[3]
VERSIONS = 9


def opened(folder: Path, memory: int = history.SMALL_MEMORY) -> Engine:
    return open_engine("rocksdb", folder, specs(history.FAMILIES), Resources(memory))


def run_until_killed(folder: Path, fault: str) -> int:
    environment = os.environ | {"HOLDFAST_FAULT": fault, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, "-m", "tests.lean", "tests.stores.history", str(folder), str(VERSIONS)]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False, timeout=60).returncode


def check_mark(folder: Path) -> None:
    """The mark matches the data: complete versions are all there, and later changes only up to `applying`."""
    engine = opened(folder)
    mark = engine.mark()
    whole = mark.version if mark else 0
    furthest = max(whole, (mark.applying if mark else None) or 0)
    if mark is not None and mark.version:
        assert mark.commit == f"commit-{mark.version}"
    found = history.state_of(engine)
    states = history.states(whole, furthest)
    if furthest == whole:
        assert found == states[0]
    for family in history.FAMILIES:
        for key in {*found[family], *(key for state in states for key in state[family])}:
            assert found[family].get(key) in [state[family].get(key) for state in states]
    engine.close()


@pytest.mark.parametrize(
    "fault",
    ["apply.before=kill@6", "apply.after=kill@5", *(f"apply.middle=kill@{n}" for n in (1, 3, 11, 17, 28, 33))],
)
def test_after_a_kill_in_apply_the_mark_matches_the_data(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "state"
    assert run_until_killed(folder, fault) == -signal.SIGKILL
    check_mark(folder)
    engine = opened(folder)
    history.catch_up(engine, VERSIONS)
    assert engine.mark() == history.mark(VERSIONS)
    assert history.state_of(engine) == history.state_at(VERSIONS)
    engine.close()


def test_several_kills_while_catching_up_lose_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    for chunk in (21, 8, 2, 13):
        assert run_until_killed(folder, f"apply.middle=kill@{chunk}") == -signal.SIGKILL
        check_mark(folder)
    assert run_until_killed(folder, "") == 0
    engine = opened(folder)
    assert engine.mark() == history.mark(VERSIONS)
    assert history.state_of(engine) == history.state_at(VERSIONS)
    engine.close()


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder with a few versions in it, flushed and closed."""
    folder = tmp_path / "state"
    engine = opened(folder)
    history.catch_up(engine, 3)
    engine.close()
    return folder


def tables(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sst"), key=lambda path: path.stat().st_size)


def test_a_clean_close_keeps_everything(closed: Path) -> None:
    engine = opened(closed)
    assert engine.mark() == history.mark(3)
    assert history.state_of(engine) == history.state_at(3)
    engine.close()


def test_a_flipped_byte_is_an_error_and_never_a_wrong_answer(closed: Path) -> None:
    for table in tables(closed):
        data = bytearray(table.read_bytes())
        for place in range(0, len(data) // 2, 4_000):
            data[place] ^= 0xFF
        table.write_bytes(data)
    with pytest.raises(DamagedState, match=str(closed)):
        everything_read(closed, by_scan=True)
    with pytest.raises(DamagedState, match=str(closed)):
        everything_read(closed, by_scan=False)


def everything_read(folder: Path, *, by_scan: bool) -> None:
    engine = opened(folder)
    try:
        if by_scan:
            history.state_of(engine)
            return
        for family in history.FAMILIES:
            keys = pa.array([b"\x01key-%05d" % n for n in range(history.KEYS)])
            engine.get_many(family, keys)
    finally:
        engine.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_that_meets_a_damaged_block_fails(tmp_path: Path, reverse: bool) -> None:
    keys = pa.array([b"\x01%06d" % n for n in range(20_000)])
    values = pa.array([random.Random(n).randbytes(100) for n in range(len(keys))])
    engine = opened(tmp_path)
    engine.apply([("counts", Changes(keys, values))], history.mark(1))
    engine.close()
    table = tables(tmp_path)[-1]
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 0xFF
    table.write_bytes(data)
    engine = opened(tmp_path)
    view = engine.view()
    ends = (b"\x01", b"\x01000050") if not reverse else (b"\x01019950", None)
    assert len(list(view.scan("counts", *ends, reverse=reverse))) == 50, "the blocks before it are readable"
    with pytest.raises(DamagedState, match=str(tmp_path)):
        list(view.scan("counts", b"\x01", None, reverse=reverse))
    engine.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_scans_of_any_length_have_each_entry_once(tmp_path: Path, written: bool, reverse: bool) -> None:
    keys = [b"\x01%06d" % n for n in range(1_500)]
    engine = opened(tmp_path)
    engine.apply([("counts", Changes(pa.array(keys), pa.array(keys)))], history.mark(1))
    view = engine.view()
    if written:  # then only the view's own iterator is right
        engine.apply([("counts", Changes(pa.array(keys[::2]), pa.nulls(750, pa.binary())))], history.mark(2))
    for length in (0, 1, 3, 4, 5, 63, 64, 65, 66, 320, 321, 1_344, 1_345, 1_499):
        stop = keys[length + 1] if length < 1_499 else None
        expected = [(key, key) for key in keys[1 : length + 1]]
        first = view.scan("counts", keys[1], stop, reverse=reverse)
        second = view.scan("counts", keys[1], stop, reverse=reverse)
        found = list(zip(first, second, strict=True))
        assert found == [(entry, entry) for entry in (expected[::-1] if reverse else expected)]
    engine.close()


def test_a_truncated_table_is_noticed_at_open(closed: Path) -> None:
    table = tables(closed)[-1]
    os.truncate(table, table.stat().st_size // 2)
    with pytest.raises(DamagedState, match=str(closed)):
        opened(closed)


def test_a_missing_table_is_noticed_at_open(closed: Path) -> None:
    tables(closed)[-1].unlink()
    with pytest.raises(DamagedState, match="Delete the folder"):
        opened(closed)


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_garbage_in_the_databases_own_files_is_noticed_at_open(closed: Path, name: str) -> None:
    for path in closed.glob(name):
        path.write_bytes(b"garbage")
    with pytest.raises(DamagedState, match=str(closed)):
        opened(closed)
    # with the files deleted, the next open starts with an empty engine
    for path in closed.iterdir():
        path.unlink()
    engine = opened(closed)
    assert engine.mark() is None
    engine.close()


def test_a_folder_is_opened_once(closed: Path) -> None:
    engine = opened(closed)
    with pytest.raises(EngineInUse, match=str(closed)):
        opened(closed)
    engine.close()
    opened(closed).close()


def test_a_store_the_app_no_longer_has_is_dropped(closed: Path) -> None:
    open_engine("rocksdb", closed, specs(history.FAMILIES[:2]), Resources(history.SMALL_MEMORY)).close()
    engine = opened(closed)
    mark = engine.mark()
    assert mark is not None
    assert (mark.version, mark.applying) == (0, 3)
    assert history.state_of(engine)["quiet"] == {}
    history.catch_up(engine, 3)
    assert history.state_of(engine) == history.state_at(3)
    engine.close()


def test_all_databases_of_a_process_share_one_budget(tmp_path: Path) -> None:
    resources = Resources(16 * 1024 * 1024)
    engines = [open_engine("rocksdb", tmp_path / str(n), specs(history.FAMILIES), resources) for n in range(4)]
    for engine in engines:
        history.catch_up(engine, 6)
    buffers = sum(engine.memory_bytes() for engine in engines)
    assert buffers <= resources.memory_bytes
    for engine in engines:
        assert history.state_of(engine) == history.state_at(6)
        engine.close()


@pytest.mark.parametrize("small_disk", ["3m"], indirect=True)
def test_a_full_disk_is_an_error_and_loses_nothing(small_disk: Path) -> None:
    folder = small_disk / "state"
    engine = opened(folder)
    history.catch_up(engine, 3)
    engine.flush()
    ballast = small_disk / "ballast"
    with pytest.raises(DiskFull, match="Free space"):
        fill(engine, ballast)
    with pytest.raises(DiskFull):
        engine.close()
    ballast.unlink()
    check_mark(folder)


def fill(engine: Engine, ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4_096)):
                pass
        except OSError:
            pass
    for version in range(4, 40):
        engine.apply(history.changes(version), history.mark(version))
    engine.flush()


def test_a_stalled_write_keeps_no_other_thread_waiting(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, "-m", "tests.lean", "tests.stores.stalled_write", str(tmp_path / "state")]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == ["other threads run", "v3 at version 3"]
