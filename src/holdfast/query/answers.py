"""The answers of REST as types: what is encoded, and what the OpenAPI document says.

A member that an answer may leave out is `UNSET` unless it is there. Values are in the JSON of `render`.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.instance.config import Role
from holdfast.query.opening import ReadSource
from holdfast.words import NOTHING


class KeyAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One entry."""

    store: str
    key: Any
    value: Any
    schema: int | UnsetType = UNSET
    """The schema that the value was written in, where that isn't the newest one."""
    upcast: bool | UnsetType = UNSET
    timestamp: int | UnsetType = UNSET
    """The event time of the value, in milliseconds since 1970."""
    expires: int | UnsetType = UNSET
    valid_to: int | UnsetType | None = UNSET
    """Of a value as of a time: when it ended; null for the latest."""
    version: int
    committed: int | None
    """When the version was committed, in milliseconds since 1970; null before the first version."""
    event_time: int | None
    """The event clock of the version; null in a stream without event times."""
    task: str
    role: Role
    """Whether an active replica has answered, or a standby."""
    instance: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry among others."""

    key: Any
    value: Any
    found: bool | UnsetType = UNSET
    """False for a key that was asked for and isn't there."""
    schema: int | UnsetType = UNSET
    upcast: bool | UnsetType = UNSET
    timestamp: int | UnsetType = UNSET
    expires: int | UnsetType = UNSET
    error: str | UnsetType = UNSET
    """Why the entry can't be read."""


class FromParts(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer says that comes from several partitions."""

    store: str
    version: int
    """That of all partitions if `consistent`, otherwise the smallest."""
    committed: int | None
    event_time: int | None
    consistent: bool
    role: Role
    """Standby if any partition was answered by one."""
    instances: tuple[str, ...]
    missing: dict[str, str] | UnsetType = UNSET
    """With partial=true: the tasks that are left out, and why."""


def from_parts(store: str, source: ReadSource) -> dict[str, Any]:
    """The members of `FromParts`."""
    return {
        "store": store,
        "version": source.version,
        "committed": None if source.version == NOTHING else source.now.wall,
        "event_time": source.now.event,
        "consistent": source.consistent,
        "role": source.role,
        "instances": source.instances,
        "missing": source.missing or UNSET,
    }


VERSION_HEADER: Final = "holdfast-version"
SOURCE_HEADERS: Final = (
    VERSION_HEADER,
    "holdfast-committed",
    "holdfast-event-time",
    "holdfast-consistent",
    "holdfast-role",
    "holdfast-instances",
)
MORE_HEADER: Final = "holdfast-more"


def source_headers(source: ReadSource) -> dict[str, str]:
    """The same as headers, for an answer whose body isn't JSON, or is the user's own. A null has none."""
    said = (
        source.version,
        None if source.version == NOTHING else source.now.wall,
        source.now.event,
        str(source.consistent).lower(),
        source.role,
        ",".join(source.instances),
    )
    return {name: str(value) for name, value in zip(SOURCE_HEADERS, said, strict=True) if value is not None}


class RangeAnswer(FromParts, frozen=True, kw_only=True):
    """Entries in key order."""

    entries: tuple[Entry, ...]
    cursor: str | None
    """Where the next page starts; null on the last one."""
    moved_on: bool | UnsetType = UNSET
    """With a cursor: whether this page is of a newer version than the one before."""


class KeysAnswer(FromParts, frozen=True, kw_only=True):
    """One entry per key that was asked for, in the same order."""

    entries: tuple[Entry, ...]


class ScanEnd(FromParts, frozen=True, kw_only=True):
    """The last line of a scan. A scan without it was cut off."""

    end: bool = True
    entries: int
    cursor: str | None
    """Where the next scan starts, if a limit has ended this one."""
    moved_on: bool | UnsetType = UNSET
    """With a cursor: whether this scan is of a newer version than the one before."""


class CountAnswer(FromParts, frozen=True, kw_only=True):
    """How many entries there are."""

    count: int
    exact: bool


def query_answer(name: str) -> type[msgspec.Struct]:
    """The answer of a query that a kind of store declares: its items are a member of the query's name."""
    members = [("key", Any), ("items", list[dict[str, Any]]), ("more", bool), ("tasks", list[str])]
    title = "".join(word.capitalize() for word in name.split("-"))
    return msgspec.defstruct(f"{title}Answer", members, bases=(FromParts,), kw_only=True, rename={"items": name})


def all_keys_answer(name: str) -> type[msgspec.Struct]:
    """The answer of such a query for all keys. Each item has its key."""
    members: list[tuple[str, Any] | tuple[str, Any, Any]]
    members = [("items", list[dict[str, Any]]), ("cursor", str | None), ("moved_on", bool | UnsetType, UNSET)]
    title = "".join(word.capitalize() for word in name.split("-"))
    return msgspec.defstruct(f"All{title}Answer", members, bases=(FromParts,), kw_only=True, rename={"items": name})


class TopAnswer(FromParts, frozen=True, kw_only=True):
    """The best rows of a group of a leaderboard."""

    key: Any
    top: list[dict[str, Any]]
    more: bool


class RewritingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the rewrite pass of a store."""

    store: str
    schema: int
    begun: bool
    finished: bool
    share: float
    seen: int
    rewritten: int
    unreadable: int
    total: int
    tasks: dict[str, Any]
    version: int
    hint: str | UnsetType = UNSET


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One store of the app."""

    version: int
    store: dict[str, Any]


class StoresAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The stores of the app."""

    version: int
    stores: list[dict[str, Any]]


class ProblemAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Every answer that isn't a success. Some have more members."""

    error: str
    """A short name that doesn't change."""
    message: str
    what_to_do: str
