"""What clients return: values with what they are an answer to.

Times are milliseconds since 1970, as everywhere in Holdfast.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

V = TypeVar("V")
D = TypeVar("D")
T = TypeVar("T")

_HEADERS = "holdfast-"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSource:
    """Which state of the app an answer is from, and who gave it."""

    version: int
    """That of all partitions if `consistent`, otherwise the smallest."""
    committed: int | None = None
    """When the version was committed; None before the first one."""
    event_time: int | None = None
    """The event clock of the version; None in a stream without event times."""
    consistent: bool = True
    """Whether all partitions were read at `version`; an answer from one always is."""
    role: str | None = None
    """"active", or "standby" if any partition was answered by one; None if the answer doesn't say."""
    instances: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Tasks that are left out of a partial answer, and why."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "AnswerSource":
        """What an answer says about itself."""
        one = body.get("instance")
        return cls(
            version=body["version"],
            committed=body.get("committed"),
            event_time=body.get("event_time"),
            consistent=body.get("consistent", True),
            role=body.get("role"),
            instances=tuple(body.get("instances", ()) if one is None else (one,)),
            missing=body.get("missing", {}),
        )

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> "AnswerSource | None":
        """What an answer says in its headers; None if it is of no store."""
        said = {name.removeprefix(_HEADERS): text for name, text in headers.items() if name.startswith(_HEADERS)}
        if "version" not in said:
            return None
        return cls(
            version=int(said["version"]),
            committed=int(said["committed"]) if "committed" in said else None,
            event_time=int(said["event-time"]) if "event-time" in said else None,
            consistent=said.get("consistent") != "false",
            role=said.get("role"),
            instances=tuple(said["instances"].split(",")) if "instances" in said else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry(Generic[V]):
    """One key and its value."""

    key: Any
    value: V | None
    found: bool = True
    """Whether the store has the key."""
    timestamp: int | None = None
    """The event time of the value, where the store keeps it."""
    expires: int | None = None
    valid_to: int | None = None
    """Of a value as of a time: when it ended; None for the latest one."""
    schema: int | None = None
    """The schema that the value was written in, where only an upcaster of the app turns it into the newest one. The
    value is then not of the type that was asked for, but as it was written."""
    task: str | None = None
    error: str | None = None
    """Why the value can't be read: the other entries of a range are shown all the same."""
    source: AnswerSource

    @property
    def version(self) -> int:
        return self.source.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Spanned(Generic[V]):
    """A window or a session of a key: from `start`, which is included, to `end`."""

    key: Any
    start: int
    end: int
    value: V | None
    schema: int | None = None
    """As in `StoreEntry`, also below."""
    task: str | None = None
    source: AnswerSource

    @property
    def version(self) -> int:
        return self.source.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Past(Generic[V]):
    """A value of a key's history, valid from `timestamp` until before `valid_to`; None for the latest one."""

    key: Any
    value: V | None
    timestamp: int
    valid_to: int | None
    schema: int | None = None
    task: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[V]):
    """One change of a store that is watched."""

    id: str
    """`watch(after=id)` goes on after this change."""
    key: Any
    value: V | None
    deleted: bool
    start: int | None = None
    """Of a window or session."""
    end: int | None = None
    timestamp: int | None = None
    schema: int | None = None
    version: int
    committed: int | None
    task: str
    error: str | None = None


class AnswerPage(Sequence[T]):
    """Items of an answer, with what they are from. `more` says that the answer had a limit and there are others."""

    def __init__(self, items: Sequence[T], source: AnswerSource, *, more: bool) -> None:
        self._items = items
        self.source = source
        self.more = more

    @property
    def version(self) -> int:
        return self.source.version

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"AnswerPage({list(self._items)!r}, version={self.version}, more={self.more})"
