"""An engine that failed is closed and opened again while its error is still being handled.

Python keeps the local variables of every function that an error came through. A RocksDB iterator or family handle
among them would keep the database open, and its folder locked.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError
from holdfast.faults import InjectedFault
from holdfast.stores.engines.base import Changes, DamagedState, DiskFull, Engine, Resources
from holdfast.stores.engines.registry import open_engine
from tests.stores import history
from tests.stores.making import specs

FAMILY = history.FAMILIES[0]


def opened(folder: Path) -> Engine:
    return open_engine("rocksdb", folder, specs(history.FAMILIES), Resources(history.SMALL_MEMORY))


@contextlib.contextmanager
def reopened_after(error: type[HoldfastError], engine: Engine, folder: Path) -> Iterator[None]:
    try:
        yield
    except error:
        with contextlib.suppress(error):  # a compaction may have met the damage too; closing then says so once more
            engine.close()
        opened(folder).close()
    else:
        pytest.fail(f"expected {error.__name__}")


def test_after_changes_that_could_not_be_read(tmp_path: Path) -> None:
    def changes() -> Iterator[tuple[str, Changes]]:
        yield FAMILY, Changes(pa.array([b"a"]), pa.array([b"1"]))
        raise InjectedFault("the next part of the segment is gone")

    engine = opened(tmp_path)
    with reopened_after(InjectedFault, engine, tmp_path):
        engine.apply(changes(), history.mark(1))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A folder whose only large table has a damaged block in its middle."""
    keys = pa.array([b"\x01%06d" % n for n in range(20_000)])
    values = pa.array([random.Random(n).randbytes(100) for n in range(len(keys))])
    engine = opened(tmp_path)
    engine.apply([(FAMILY, Changes(keys, values))], history.mark(1))
    engine.close()
    table = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 0xFF
    table.write_bytes(data)
    return tmp_path


def got(engine: Engine) -> None:
    view = engine.view()
    for number in range(20_000):
        view.get(FAMILY, b"\x01%06d" % number)


def scanned(engine: Engine) -> None:
    list(engine.view().scan(FAMILY, b"\x01", None))


def scanned_back(engine: Engine) -> None:
    list(engine.view().scan(FAMILY, b"\x01", None, reverse=True))


def dropped(engine: Engine) -> None:
    for number in range(20_000):
        engine.drop(FAMILY, b"\x01%06dx" % number, b"\x01%06dy" % number)


@pytest.mark.parametrize("meet", [got, scanned, scanned_back, dropped])
def test_after_a_damaged_block(damaged: Path, meet: Callable[[Engine], None]) -> None:
    engine = opened(damaged)
    with reopened_after(DamagedState, engine, damaged):
        meet(engine)


@pytest.mark.parametrize("small_disk", ["3m"], indirect=True)
def test_after_a_write_that_a_full_disk_failed(small_disk: Path) -> None:
    engine = opened(small_disk / "state")
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4_096)):
            pass
    with contextlib.suppress(DiskFull):
        for version in range(1, 40):
            engine.apply(history.changes(version), history.mark(version))
            engine.flush()
    try:
        engine.apply(history.changes(40), history.mark(40))
    except DiskFull:
        with contextlib.suppress(DiskFull):
            engine.close()
        (small_disk / "ballast").unlink()
        opened(small_disk / "state").close()
    else:
        pytest.fail("an engine that couldn't flush still accepts writes")
