"""`hf.Client`: the stores of a running app, from any Python program.

    >>> import holdfast as hf
    >>> client = hf.Client(["http://localhost:8080"])            # connects when it is first used
    >>> players = client.store("players")                        # players.get("alice"), players.range("a", "c") ...
    >>> client.close()

`hf.AsyncClient` is the same on an event loop. Neither has rules: both run the flows of the core.
"""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Self, Unpack, overload

from holdfast.client import frames, watching
from holdfast.client.answers import AnswerPage, Change, D, Past, Spanned, StoreEntry, V
from holdfast.client.blocking import Blocking
from holdfast.client.core import TIMEOUT, Core
from holdfast.client.frames import Frame
from holdfast.client.options import Duration, ReadOptions, shown
from holdfast.client.store_flows import StoreFlows, Time
from holdfast.query.routes import StoreRoute


class Client:
    """The stores of an app. Any number of threads may use one client; it keeps its connections until it is closed.

    `addresses` are those of REST of some instances, with http:// unless they say https://; the client finds the others.
    `timeout` is the time of each call, unless it has its own. With `hedge`, a read that takes longer is sent to a
    second replica too.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: Duration = TIMEOUT,
        hedge: Duration | None = None,
    ) -> None:
        self._core = Core(addresses, timeout=timeout, hedge=hedge)
        self._shell = Blocking(token, tls)

    @overload
    def store(self, name: str) -> "RemoteStore[Any]": ...

    @overload
    def store(self, name: str, value: type[V]) -> "RemoteStore[V]": ...

    def store(self, name: str, value: Any = None) -> "RemoteStore[Any]":
        """A store; nothing is asked yet. Values are converted to the type `value`, if it is given."""
        return RemoteStore(StoreFlows(self._core, name, value), self._shell)

    def stores(self) -> list[dict[str, Any]]:
        """The stores of the app, with their types."""
        return self._shell.run(self._core.stores())

    def sql(
        self,
        statement: str,
        *,
        limit: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> Frame:
        """The result of one SELECT over the stores, all of them at one version.

        That is the newest one that all partitions have already; with at="latest" those that are behind come to a newer.
        """
        return self._shell.run(frames.of_statement(self._core, statement, limit, options))

    def close(self) -> None:
        self._shell.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteStore(Generic[V]):
    """One store of a running app. A key is a Python value, or a tuple if it has several components.

    Every read takes `ReadOptions`: how fresh its answer has to be, and how long it may take. `fields` are those of
    values that are shown. With `partial` an answer leaves out partitions that can't be read now, and `source.missing`
    names them.
    """

    def __init__(self, flows: StoreFlows[V], shell: Blocking) -> None:
        self._flows = flows
        self._shell = shell

    def get(
        self, key: object, default: D | None = None, *, fields: Sequence[str] = (), **options: Unpack[ReadOptions]
    ) -> V | D | None:
        """The value of a key; `default` if the store doesn't have it."""
        return self._shell.run(self._flows.get(key, default, {"fields": fields}, options))

    def entry(self, key: object, *, fields: Sequence[str] = (), **options: Unpack[ReadOptions]) -> StoreEntry[V]:
        """The value of a key with its timestamp, its version and who has answered; `found` says whether it is there."""
        return self._shell.run(self._flows.entry(key, {"fields": fields}, options))

    def as_of(
        self, key: object, time: Time, *, fields: Sequence[str] = (), **options: Unpack[ReadOptions]
    ) -> StoreEntry[V]:
        """What a versioned store had under a key at a time."""
        return self._shell.run(self._flows.entry(key, {"as_of": time, "fields": fields}, options))

    def get_many(
        self, keys: Sequence[object], *, fields: Sequence[str] = (), **options: Unpack[ReadOptions]
    ) -> dict[Any, V | None]:
        """The values of those keys that the store has, in one request. With at="latest" they are of one version."""
        return self._shell.run(self._flows.get_many(keys, {"fields": fields}, options))

    def entries(
        self,
        keys: Sequence[object],
        *,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AnswerPage[StoreEntry[V]]:
        """One entry per key, in the order of the keys. `source.consistent` says whether they are of one version."""
        return self._shell.run(self._flows.entries(keys, shown(fields, partial), options))

    def range(
        self,
        first: object = None,
        last: object = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Iterator[StoreEntry[V]]:
        """Entries in key order, from `first` to `last`, both included. Pages are read as you iterate."""
        given = {"from": first, "to": last, "reverse": reverse or None, **shown(fields, partial)}
        return self._shell.iterate(self._flows.range(given, limit, options))

    def prefix(
        self,
        prefix: object,
        *,
        limit: int | None = None,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Iterator[StoreEntry[V]]:
        """Entries whose keys begin with a text; for a key of several components, with the first components."""
        return self._shell.iterate(self._flows.range({"prefix": prefix, **shown(fields, partial)}, limit, options))

    def count(
        self, first: object = None, last: object = None, *, partial: bool = False, **options: Unpack[ReadOptions]
    ) -> int:
        """How many keys the store has, or a range of it."""
        return self._shell.run(self._flows.count({"from": first, "to": last}, shown((), partial), options))

    def windows(
        self,
        key: object,
        first: Time | None = None,
        last: Time | None = None,
        *,
        limit: int | None = None,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AnswerPage[Spanned[V]]:
        """The windows of a key that start within a span of time, both ends included."""
        given = {"from": first, "to": last, "limit": limit, **shown(fields, partial)}
        return self._shell.run(self._flows.spans("windows", key, given, options))

    def all_windows(
        self,
        first: Time | None = None,
        last: Time | None = None,
        *,
        first_key: object = None,
        last_key: object = None,
        limit: int | None = None,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Spanned[V]]:
        """The windows of all keys that start within a span of time, by key. Pages are read as you iterate."""
        given = {"from": first, "to": last, "key_from": first_key, "key_to": last_key, **shown(fields, partial)}
        return self._shell.iterate(self._flows.all_spans("windows", given, limit, options))

    def sessions(
        self,
        key: object,
        first: Time | None = None,
        last: Time | None = None,
        *,
        limit: int | None = None,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AnswerPage[Spanned[V]]:
        """The sessions of a key that overlap a span of time, both ends included."""
        given = {"from": first, "to": last, "limit": limit, **shown(fields, partial)}
        return self._shell.run(self._flows.spans("sessions", key, given, options))

    def all_sessions(
        self,
        first: Time | None = None,
        last: Time | None = None,
        *,
        first_key: object = None,
        last_key: object = None,
        limit: int | None = None,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Spanned[V]]:
        """The sessions of all keys that overlap a span of time, by key. Pages are read as you iterate."""
        given = {"from": first, "to": last, "key_from": first_key, "key_to": last_key, **shown(fields, partial)}
        return self._shell.iterate(self._flows.all_spans("sessions", given, limit, options))

    def history(
        self,
        key: object,
        first: Time | None = None,
        last: Time | None = None,
        *,
        limit: int | None = None,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AnswerPage[Past[V]]:
        """The values of a key over time, in a versioned store."""
        given = {"from": first, "to": last, "limit": limit, **shown(fields, partial)}
        return self._shell.run(self._flows.history(key, given, options))

    def top(
        self,
        group: object = "all",
        n: int | None = None,
        *,
        fields: Sequence[str] = (),
        partial: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AnswerPage[V]:
        """The best rows of a leaderboard, of a group or of the whole table, the best one first."""
        return self._shell.run(self._flows.top(group, {"limit": n, **shown(fields, partial)}, options))

    def rank(self, key: object, **options: Unpack[ReadOptions]) -> int | None:
        """The rank of a row in a leaderboard, 1 for the best; None if it has no score."""
        return self._shell.run(self._flows.rank(key, options))

    def query(
        self, name: str, key: object, given: Mapping[str, Any] = {}, **options: Unpack[ReadOptions]
    ) -> AnswerPage[dict[str, Any]]:
        """A query that the app's own kind of store declares, with its parameters."""
        return self._shell.run(self._flows.query(name, key, given, options))

    def route(self) -> StoreRoute:
        """The kind of the store, its key schema, and how it is spread."""
        return self._shell.run(self._flows.route())

    def dataframe(
        self,
        columns: Sequence[str] = (),
        **options: Unpack[ReadOptions],
    ) -> Frame:
        """All entries as columns, at one version: `.pandas()`, `.polars()` or `.arrow` of what is returned."""
        return self._shell.run(frames.of_store(self._flows.core, self._flows.store, columns, options))

    def watch(
        self,
        key: object = None,
        *,
        prefix: object = None,
        from_version: int | None = None,
        after: str | None = None,
        timeout: Duration | None = None,
    ) -> Iterator[Change[V]]:
        """The changes of a store, of a key or of a prefix, as they are committed, for as long as you iterate.

        They begin with the next version, with `from_version`, or after the change whose `id` is given. Once it has
        begun, a watch waits for as long as no instance answers, or for `timeout`.
        """
        given = {"key": key, "prefix": prefix, "from_version": from_version}
        options = {} if timeout is None else {"timeout": timeout}
        return self._shell.iterate(watching.watch(self._flows, given, after, options))
