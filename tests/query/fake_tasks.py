"""Fake tasks whose entries a test writes, and REST on them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import httpx2
import msgspec

from holdfast.clock import Clock, ManualClock
from holdfast.errors import HoldfastError
from holdfast.instance.config import Role
from holdfast.instance.looks import Looks
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import Commit
from holdfast.query.health import AppStateInfo
from holdfast.query.reader import StoreReader
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.task_reader import ANY_REPLICA, KeyRead, ReadNeeds, Served, TaskStore, too_old
from holdfast.settings.rest import RestSettings
from holdfast.stores.access import DictBytes, Now
from holdfast.stores.formats.cells import Cell, pack
from holdfast.stores.formats.keys import encode_key
from holdfast.stores.formats.partition import partition_of
from holdfast.stores.formats.rows import encode_row
from holdfast.stores.formats.types import Schema
from holdfast.stores.spec import RowValues, StoreSpec
from holdfast.words import Millis, TaskId, Version
from tests.log.making import subtopologies_of
from tests.stores.making import columns_of

SCORES = StoreSpec(
    name="scores",
    key=Schema.of(player="string"),
    value=RowValues(
        columns_of(
            {"points": "bigint", "best": "double", "money": "decimal(10,2)", "day": "date", "best#count": "bigint"}
        )
    ),
    codec="rows/1",
    engine="memory",
)
LEVELS = StoreSpec(name="levels", key=Schema.of(player="string", level="int"), codec="msgpack/1", engine="memory")
NUMBERS = StoreSpec(name="numbers", key=Schema.of(n="bigint"), codec="msgpack/1", engine="memory")
APP = AppSpec(
    id="game",
    partitions=3,
    stores=(SCORES, LEVELS, NUMBERS),
    subtopologies=subtopologies_of({"scores": 0, "levels": 0, "numbers": 1}),
)


class FakeTask:
    """One task at its last few versions. If `error` is set, every read raises it."""

    def __init__(self, task: TaskId, *, local: bool = True) -> None:
        self.task = task
        self.local = local
        self.error: HoldfastError | None = None
        self.versions: dict[int, dict[str, dict[bytes, bytes]]] = {0: {}}
        self.now = Now(wall=0)
        self.served = Served(Role.ACTIVE, "game-0")
        self.catch_up: Callable[[Version], None] = lambda version: None
        """What happens while a reader waits for a version."""
        self.holds = 0

    def write(self, version: int, store: str, changes: Mapping[bytes, bytes | None] = {}, *, keep: int = 3) -> None:
        """Adds a version: the last one with these changes. Only the last `keep` versions stay readable."""
        stores = {name: dict(cells) for name, cells in self.versions[max(self.versions)].items()}
        cells = stores.setdefault(store, {})
        for key, value in changes.items():
            if value is None:
                cells.pop(key, None)
            else:
                cells[key] = value
        self.versions[version] = stores
        for old in sorted(self.versions)[:-keep]:
            del self.versions[old]

    @property
    def newest(self) -> Version:
        return Version(max(self.versions))

    def is_behind(self, version: Version, needs: ReadNeeds) -> bool:
        return False

    def get(self, store: str, key: bytes, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> KeyRead:
        at, stores = self._at(version, needs)
        return KeyRead(at, stores.get(store, {}).get(key), self.now, self.served)

    @contextmanager
    def at(self, store: str, version: Version | None = None, needs: ReadNeeds = ANY_REPLICA) -> Iterator[TaskStore]:
        at, stores = self._at(version, needs)
        bytes_ = DictBytes()
        bytes_.entries.update(stores.get(store, {}))
        yield TaskStore(at, self.now, bytes_, self.served, lambda terms: self._hold(at))

    def _hold(self, version: Version) -> "FakeHold":
        self.holds += 1
        return FakeHold(version, self)

    def _at(self, version: Version | None, needs: ReadNeeds) -> tuple[Version, dict[str, dict[bytes, bytes]]]:
        if self.error is not None:
            raise self.error
        wanted = needs.at_least if version is None else version
        if needs is not ANY_REPLICA and wanted > self.newest:
            self.catch_up(wanted)
        if needs is not ANY_REPLICA and wanted > self.newest:
            raise too_old(self.task, self.newest, wanted)
        at = max(self.versions) if version is None else version
        if at not in self.versions:
            available = (Version(min(self.versions)), Version(max(self.versions)))
            raise VersionNotAvailable.of(self.task, version, available, "the test moved on")
        return Version(at), self.versions[at]


@dataclass
class FakeHold:
    """A version that is held in name alone: a test removes versions itself."""

    version: Version
    task: FakeTask

    def at(self, store: str) -> AbstractContextManager[TaskStore]:
        return self.task.at(store, self.version)

    def release(self) -> None:
        self.task.holds -= 1


class Files:
    """The app files of an app whose code never changes."""

    def __init__(self, app: AppSpec, clock: Clock) -> None:
        self.app = app
        self.looks = Looks(clock)
        self.looks.looked(math.inf)

    newest_known = Version(0)

    def commit(self, version: Version) -> Commit | None:
        return None

    def look_at_app(self) -> None:
        pass

    def app_of(self, version: Version) -> AppSpec:
        return self.app


class World:
    """An app whose tasks are all fakes."""

    def __init__(
        self, app: AppSpec = APP, *, remote: Sequence[TaskId] = (), max_page: int = RestSettings.max_page
    ) -> None:
        self.app = app
        self.tasks = {task: FakeTask(task, local=task not in remote) for task in app.tasks()}
        self.clock = ManualClock(Millis(1_000))
        self.log = Files(app, self.clock)
        self.reader = StoreReader(self.log, self.find, self.clock, max_page=max_page)

    def find(self, task: TaskId, needs: ReadNeeds = ANY_REPLICA, /) -> FakeTask | None:
        return self.tasks.get(task)

    def task_of(self, store: StoreSpec, key: Sequence[object]) -> TaskId:
        return TaskId(self.app.number_of(store.name), partition_of(store.key, key, self.app.partitions))

    def commit(self, version: int, store: StoreSpec, entries: Mapping[tuple[object, ...], object | None]) -> None:
        """Brings every task to the version, each with its own entries; None deletes."""
        for task, fake in self.tasks.items():
            own = {
                encode_key(store.key, key): None if value is None else pack(Cell(payload(store, value)))
                for key, value in entries.items()
                if self.task_of(store, key) == task
            }
            fake.write(version, store.name, own)
        self.log.newest_known = Version(version)


def payload(store: StoreSpec, value: object) -> bytes:
    if isinstance(value, tuple):
        assert store.value is not None
        return encode_row(store.columns, value)
    return msgspec.msgpack.encode(value)


STATE = AppStateInfo(app="game", instance="game-0", state="running", version=1, committed=1, ready=True)


@contextmanager
def served(reader: StoreReader) -> Iterator[httpx2.Client]:
    """A client of REST on these stores; its paths start after /v1/stores."""
    with serve(create_app(reader, lambda: STATE), port=0) as server:
        with httpx2.Client(base_url=server.url + "/v1/stores", timeout=20) as client:
            yield client
