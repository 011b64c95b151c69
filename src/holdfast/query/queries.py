"""The queries that kinds of stores declare, as paths, parameters and JSON.

The class of a kind declares which queries its stores answer: `BY_KEY` for `keys` and `range`, `QUERIES` for all others.
The class of a user's own kind is imported in the instance, by its place in the log. A query that a kind doesn't have is
an error that names the paths to use.
"""

import datetime as dt
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, SettingsError, TopologyError
from holdfast.query.keytext import BadKeyText, parse_key
from holdfast.query.opening import OpenPart, OpenStores
from holdfast.query.paging import MergedPage, PageLimits, read_page
from holdfast.query.problems import Problem, of_users_code
from holdfast.query.render import answered, to_json
from holdfast.query.store_specs import StoreSpecs
from holdfast.query.wanted import while_wanted
from holdfast.query.wanted_bytes import WantedBytes
from holdfast.settings.units import parse_duration
from holdfast.stores.access import Now, ReadableBytes
from holdfast.stores.formats.keys import key_schema
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds import kind_name, store_class
from holdfast.stores.kinds.base import Store, View, millis
from holdfast.stores.kinds.queries import TIME, Item, Query
from holdfast.stores.kinds.scores import SCORES
from holdfast.stores.layouts.registry import layout_of
from holdfast.stores.spec import StoreSpec, TypedValues
from holdfast.words import TaskId, Version

log = logging.getLogger(__name__)

_MILLIS = re.compile(r"-?[0-9]{1,19}")
_BY_KEY = ("keys/{key}", "range?from=&to=")
_NO_HISTORY = " Only an aggregate's .store(..., history=) and hf.VersionedKeyValueStore have a history."


class Kinds:
    """The classes of an app's kinds of stores, each imported once: those of `specs` now, others when first asked for.

    A class that can't be imported is an error when its store is queried.
    """

    def __init__(self, specs: Iterable[StoreSpec]) -> None:
        self._imported: dict[str, type[Store[Any, Any]] | TopologyError] = {}
        for spec in specs:
            self._import(spec)

    def check_by_key(self, spec: StoreSpec) -> None:
        """Rejects a store whose entries aren't stored under their own keys; any answer would be wrong."""
        if not self._class_of(spec).BY_KEY:
            raise self._wrong_kind(spec)

    def query(self, spec: StoreSpec, name: str) -> Query:
        """The store's query of that name."""
        for query in self._class_of(spec).QUERIES:
            if query.name == name:
                return query
        raise self._wrong_kind(spec, _NO_HISTORY if name == "history" else "")

    def view(self, spec: StoreSpec, bytes_: ReadableBytes, now: Now) -> View[Any, Any]:
        """The store as its kind reads it. Values of a codec that this process doesn't have are bytes."""
        view = self._class_of(spec).VIEW
        try:
            return view(spec, bytes_, now, value=None)
        except TopologyError:
            return view(msgspec.structs.replace(spec, codec="bytes/1", value=TypedValues()), bytes_, now)

    def queries(self) -> dict[str, list[Query]]:
        """All queries that the kinds declare, by name."""
        found: dict[str, list[Query]] = {}
        for each in self._imported.values():
            for query in each.QUERIES if isinstance(each, type) else ():
                if query not in found.setdefault(query.name, []):
                    found[query.name].append(query)
        return found

    def with_query(self, specs: StoreSpecs, name: str) -> list[str]:
        """The names of the stores that answer a query."""
        kinds = {spec.name: self._import(spec) for spec in specs.all()}
        found = [store for store, kind in kinds.items() if isinstance(kind, type) and _has(kind, name)]
        return sorted({*found, *(store.removesuffix(SCORES) for store in found)} & set(kinds))

    def answering(self, specs: StoreSpecs, store: str, name: str) -> StoreSpec:
        """The store that answers a query: the one that is named, or the scores of a leaderboard of that name."""
        spec, others = specs[store], {each.name: each for each in specs.all()}
        scores = others.get(store + SCORES)
        if scores is not None and not _has(self._class_of(spec), name) and _has(self._class_of(scores), name):
            return scores
        return spec

    def by_key(self, specs: StoreSpecs) -> list[str]:
        """The names of the stores whose entries are stored under their own keys."""
        kinds = {spec.name: self._import(spec) for spec in specs.all()}
        return [store for store, kind in kinds.items() if isinstance(kind, type) and kind.BY_KEY]

    def _import(self, spec: StoreSpec) -> type[Store[Any, Any]] | TopologyError:
        if spec.kind not in self._imported:
            try:
                self._imported[spec.kind] = store_class(spec.kind)
            except TopologyError as error:
                self._imported[spec.kind] = error
                log.warning("store %s can't be queried here: %s", spec.name, error)
        return self._imported[spec.kind]

    def _class_of(self, spec: StoreSpec) -> type[Store[Any, Any]]:
        found = self._import(spec)
        if isinstance(found, TopologyError):
            raise Problem(
                500,
                "kind_not_found",
                f"Store {spec.name!r} is of the app's own kind {spec.kind}, which this instance can't import; its "
                "log says why.",
                f"Make the module {spec.kind.partition(':')[0]} importable where this instance runs, and restart it.",
                {"kind": spec.kind},
            )
        return found

    def _wrong_kind(self, spec: StoreSpec, hint: str = "") -> Problem:
        found = self._class_of(spec)
        paths = [*(_BY_KEY if found.BY_KEY else ()), *(query.path for query in found.QUERIES)]
        what = (
            f"Ask {', '.join(f'/v1/stores/{spec.name}/{path}' for path in paths)}."
            if paths
            else f"Declare what it can be asked: {found.__name__}.QUERIES = (Query(...),), see docs/queries.md."
        )
        fact = f"Store {spec.name!r} is a {kind_name(spec.kind)} store."
        return Problem(400, "wrong_kind", fact, what + hint, {"kind": kind_name(spec.kind)})


def _has(kind: type[Store[Any, Any]], name: str) -> bool:
    return any(query.name == name for query in kind.QUERIES)


Source = Callable[[View[Any, Any], Mapping[str, Any]], Iterable[Item]]
"""The items that a query yields, of the view of a task and with its parameters."""


class Placed(NamedTuple):
    """An item of a task as it is shown, and where it is among all items."""

    position: Any
    item: Item
    size: int
    task: TaskId


_POSITION, _SIZE = attrgetter("position"), attrgetter("size")


class AskedQuery(ABC):
    """A query with the parameters of a request, to be answered by each task."""

    WHOLE_POSITIONS: ClassVar[bool]
    """Whether all items at one position are on one page."""

    def __init__(self, kinds: Kinds, spec: StoreSpec, query: Query, given: Mapping[str, str]) -> None:
        self._kinds, self._query, self._spec = kinds, query, spec
        self._times: dict[str, tuple[str, str]] = {}
        self._values: dict[str, Any] = {}
        for name, (argument, type_) in query.parameters.items():
            if (text := given.get(name)) is None and argument in query.required:
                what = f"Ask /v1/stores/{spec.name}/{query.path}."
                raise Problem(400, "bad_parameter", f"The parameter {name!r} is missing.", what)
            if text is None:
                self._values[argument] = None
            elif type_ == TIME:
                self._times[argument] = name, text
            else:
                self._values[argument] = _parameter(name, type_, text)

    def page(
        self, opened: OpenStores, spec_at: Callable[[Version], StoreSpec], limits: PageLimits
    ) -> MergedPage[Placed]:
        """The items of all tasks in order. `spec_at` gives the store's spec as it was at a version."""

        def rows(part: OpenPart) -> Generator[Placed, None, None]:
            with part.reading():
                yield from self.placed(spec_at(part.store.version), part)

        with self._users_code():
            return read_page(opened, rows, limits, position=_POSITION, size=_SIZE, whole=self.WHOLE_POSITIONS)

    def placed(self, spec: StoreSpec, part: OpenPart) -> Generator[Placed, None, None]:
        """The items of one task."""
        now = layout_of(spec).clock(part.store.now)
        times = {argument: time_of(name, text, now) for argument, (name, text) in self._times.items()}
        view = self._kinds.view(spec, WantedBytes(part), part.store.now)
        with self._users_code(), closing(_yielded(self._source(spec), view, {**self._values, **times})) as found:
            for item in while_wanted(found):
                yield self._placed(item, spec, part.place.task)

    @abstractmethod
    def _source(self, spec: StoreSpec) -> Source:
        """The query, as it is asked."""

    @abstractmethod
    def _placed(self, item: Item, spec: StoreSpec, task: TaskId) -> Placed:
        """An item as it is shown, and where it is."""

    def _shown(self, item: Item, spec: StoreSpec) -> tuple[Item, int]:
        """An item in JSON, and its size. One that can't be JSON is an error of the query, not of the answer."""
        shown = _rendered(item, spec)
        return shown, len(msgspec.json.encode(shown))

    @property
    def _is_users_own(self) -> bool:
        return ":" in self._spec.kind

    @contextmanager
    def _users_code(self) -> Iterator[None]:
        """A user's own query may raise anything: the log then names the function to fix."""
        try:
            yield
        except (HoldfastError, Problem, GeneratorExit):
            raise
        except BaseException as error:
            if not self._is_users_own:
                raise
            what = f"The query {self._query.name!r} of store {self._spec.name!r}"
            place = f"{self._query.items.__module__}.{self._query.items.__qualname__}"
            raise of_users_code("query_failed", what, place, error) from error


class Asked(AskedQuery):
    """A query about one key."""

    WHOLE_POSITIONS = False

    def __init__(self, kinds: Kinds, spec: StoreSpec, query: Query, key_text: str, given: Mapping[str, str]) -> None:
        self.key_schema = spec.key if query.key is None else key_schema(query.key)
        self.key = parse_key(self.key_schema, key_text)
        super().__init__(kinds, spec, query, given)

    def _source(self, spec: StoreSpec) -> Source:
        key = self.key[0] if len(self.key) == 1 else self.key
        return lambda view, given: self._query.items(view, key, **given)

    def _placed(self, item: Item, spec: StoreSpec, task: TaskId) -> Placed:
        shown, size = self._shown(item, spec)
        return Placed(self._query.order(shown), shown, size, task)

    def items(self, page: MergedPage[Placed]) -> list[Item]:
        """The items of a page.

        A processor may write under another key than its record's, so several tasks may have items of one key. Each
        item then has its `task`.
        """
        if len(page.tasks) == 1:
            return [each.item for each in page.entries]
        return [{**each.item, "task": str(each.task)} for each in page.entries]


def _yielded(source: Source, view: View[Any, Any], given: Mapping[str, Any]) -> Generator[Item, None, None]:
    yield from source(view, given)


def _rendered(item: Item, spec: StoreSpec) -> Item:
    """An item in JSON. Of an aggregate's row, the hidden columns are left out."""
    found: Item = {}
    for name, member in item.items():
        if name == "value":
            found |= answered(to_json(spec.value.visible(member)))
        else:
            found[name] = to_json(member)
    return found


def _parameter(name: str, type_: Any, text: str) -> Any:
    schema = Schema.of(**{name: key_schema(type_).fields[0].type})
    try:
        return parse_key(schema, text)[0]
    except BadKeyText as error:
        fact = f"{name}={text[:100]!r} is not a {schema.fields[0].type}."
        raise Problem(400, "bad_parameter", fact, error.what_to_do) from None


def time_of(name: str, text: str, now: int) -> int:
    """The time that a parameter has."""
    try:
        return parse_time(text, now)
    except (ValueError, OverflowError, SettingsError):
        what = (
            "Give milliseconds since 1970, an ISO time with a zone such as 2026-01-31T12:00:00Z (in a URL a + is "
            "written %2B), or -1h."
        )
        raise Problem(400, "bad_time", f"{name}={text[:100]!r} is not a time with a time zone.", what) from None


def parse_time(text: str, now: int) -> int:
    """A time in milliseconds since 1970.

    >>> parse_time("1500", 0), parse_time("1970-01-01T00:00:02Z", 0), parse_time("-1h", 10_000_000)
    (1500, 2000, 6400000)
    """
    if _MILLIS.fullmatch(text):
        time = int(text)
    elif text.startswith("-"):
        time = now - parse_duration(text[1:]) // dt.timedelta(milliseconds=1)
    else:
        moment = dt.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(text)
        time = millis(moment)
    if not -(2**63) <= time < 2**63:
        raise OverflowError(text)  # stores keep times in 64 bits
    return time
