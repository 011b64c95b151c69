"""An engine whose unflushed writes are lost in a crash, a different number of them per family, as RocksDB loses them.

Each family has a journal of the writes since its last flush. A kill keeps the first few of them, chosen by the
scheduler, since RocksDB flushes a family whenever it likes. The marks are those of the real engine (`family_marks`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from holdfast import faults
from holdfast.errors import Closed
from holdfast.stores.engines import base
from holdfast.stores.engines.base import Changes, Mark, Resources, folder_bytes
from holdfast.stores.engines.family_marks import FamilyMark, combined, pack_mark, unpack_mark
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version
from tests.simulation.processes import Crash

if TYPE_CHECKING:
    from tests.simulation.world import World

NAME = "tests.simulation.disk:SimulatedEngine"
_OWN = ""
"""The family of the engine's own mark."""
_CHUNK = 3
"""Rows per write: few, so that a kill can come in the middle of a version."""
Rows = dict[bytes, bytes | None]


@dataclass
class Disk:
    """The engines that one process has open."""

    world: "World"
    dead: bool = False
    engines: "list[SimulatedEngine]" = field(default_factory=list)

    def crash(self) -> None:
        """A kill: of each family the first of its unflushed writes are on disk, or all, or none."""
        self.dead = True
        for engine in self.engines:
            engine.crash()
        self.engines.clear()


def resources_on(disk: Disk) -> Resources:
    resources = Resources(1 << 20)
    resources.shared(Disk, lambda memory: disk)
    return resources


@dataclass
class Family:
    """The rows that readers see, those on disk, and the writes that lead from these to those."""

    path: Path
    rows: dict[bytes, bytes] = field(default_factory=dict)
    mark: bytes = b""
    journal: list[tuple[Rows, bytes]] = field(default_factory=list)
    stored: tuple[bytes, dict[bytes, bytes]] = (b"", {})

    @classmethod
    def opened(cls, path: Path) -> "Family":
        found = cls(path)
        if path.exists():
            found.stored = found.mark, found.rows = msgspec.msgpack.decode(path.read_bytes(), type=_STORED)
        return found

    def write(self, rows: Rows, mark: bytes) -> None:
        """The former rows stay as they are, since views have them."""
        self.journal.append((rows, mark))
        self.rows, self.mark = _written(self.rows, rows), mark or self.mark

    def flush(self, writes: int | None = None) -> None:
        """Brings the first writes of the journal to disk."""
        some = self.journal[:writes]
        if some:
            mark, rows = self.stored
            for each, own in some:
                rows, mark = _written(rows, each), own or mark
            self.stored = mark, rows
            self.path.write_bytes(msgspec.msgpack.encode(self.stored))
        self.journal = self.journal[len(some) :]


_STORED = tuple[bytes, dict[bytes, bytes]]


def _written(before: dict[bytes, bytes], rows: Rows) -> dict[bytes, bytes]:
    if not rows:
        return before
    after = dict(before)
    for key, value in rows.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


class SimulatedEngine:
    """An `Engine` of the simulation."""

    def __init__(self, path: Path, stores: Sequence[StoreSpec], resources: Resources) -> None:
        self._path = path
        self._disk: Disk = resources.shared(Disk, lambda memory: _no_disk())
        self._closed = False
        path.mkdir(parents=True, exist_ok=True)
        names = [spec.name for spec in stores]
        self._families = {name: Family.opened(path / f"{name}.rows") for name in names}
        self._own = Family.opened(path / "engine.rows")
        marks = {name: unpack_mark(each.mark) if each.mark else None for name, each in self._families.items()}
        self._marks = combined(marks, unpack_mark(self._own.mark) if self._own.mark else None)
        self._disk.engines.append(self)

    def mark(self) -> Mark | None:
        self._check()
        return None if self._marks is None else self._marks.mark

    def get_many(self, family: str, keys: pa.Array) -> pa.BinaryArray:
        rows = self._family(family).rows
        return pa.array([rows.get(key) for key in keys.to_pylist()], pa.binary())

    def apply(self, changes: Iterable[tuple[str, Changes]], mark: Mark) -> None:
        self._check()
        faults.point("apply.before")
        self._check()
        before = self.mark()
        last: dict[str, Version] = (
            dict.fromkeys(self._families, NOTHING) if self._marks is None else dict(self._marks.changed)
        )
        changed: list[str] = []
        self._marks = FamilyMark(base.mark_before_changes(before, mark), last)
        for name, change in changes:
            family = self._family(name)
            if name not in changed:
                changed.append(name)
                family.write({}, pack_mark(self._marks))
            rows = list(zip(change.keys.to_pylist(), change.values.to_pylist(), strict=True))
            for start in range(0, len(rows), _CHUNK):
                family.write(dict(rows[start : start + _CHUNK]), b"")
                faults.point("apply.middle")
                self._check()
        after = FamilyMark(base.mark_after_changes(before, mark), last | dict.fromkeys(changed, mark.version))
        for family in (*(self._families[name] for name in changed), self._own):
            family.write({}, pack_mark(after))
        self._marks = after
        faults.point("apply.after")
        self._check()

    def drop(self, family: str, start: bytes, stop: bytes) -> None:
        rows = self._family(family)
        rows.write({key: None for key in rows.rows if start <= key < stop}, b"")

    def view(self) -> "SimulatedView":
        self._check()
        return SimulatedView({name: family.rows for name, family in self._families.items()})

    def flush(self) -> None:
        self._check()
        for family in (*self._families.values(), self._own):
            family.flush()

    def checkpoint(self, folder: Path) -> None:
        self.flush()
        folder.mkdir(parents=True)
        for family in (*self._families.values(), self._own):
            (folder / family.path.name).write_bytes(msgspec.msgpack.encode(family.stored))

    def close(self) -> None:
        if not self._closed and not self._disk.dead:
            self.flush()
            self._disk.engines.remove(self)
        self._closed = True

    def crash(self) -> None:
        for family in (*self._families.values(), self._own):
            if family.journal:
                family.flush(self._disk.world.random.randint(0, len(family.journal)))
        self._closed = True

    def approximate_count(self, family: str) -> int:
        return len(self._family(family).rows)

    def memory_bytes(self) -> int:
        return 0

    def disk_bytes(self) -> int:
        return folder_bytes(self._path)

    def _family(self, name: str) -> Family:
        self._check()
        return base.family_of(self._families, name)

    def _check(self) -> None:
        if self._disk.dead:
            raise Crash
        if self._closed:
            raise Closed(f"the engine of {self._path} is closed. Open it again.")


class SimulatedView:
    """An `EngineView`: the rows as they were."""

    def __init__(self, families: dict[str, dict[bytes, bytes]]) -> None:
        self._families = families

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._families[family].get(key)

    def scan(
        self, family: str, start: bytes, stop: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._families[family]
        wanted = sorted(key for key in rows if start <= key and (stop is None or key < stop))
        return iter([(key, rows[key]) for key in (reversed(wanted) if reverse else wanted)])

    def close(self) -> None:
        """Nothing is held."""


def _no_disk() -> Disk:
    raise AssertionError("this engine needs the disk of a simulated process: use resources_on")
