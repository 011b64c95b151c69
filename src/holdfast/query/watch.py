"""Watching a store over REST: `GET /v1/stores/{store}/watch` answers with its changes, as they are committed.

The changes come from the log and not from replicas. So every instance sends the same ones under the same ids, whatever
tasks it hosts, and a client that was cut off goes on at any of them (`watch_places`).

    watch_changes    the changes that a version made to a store
    watch_reader     each version is read once for all watchers of a store
    watch_stream     the events that one watcher gets
"""

import asyncio
import datetime as dt
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import Response

from holdfast.clock import SYSTEM_CLOCK
from holdfast.instance.log_reader import LogReader
from holdfast.query.freshness import not_committed
from holdfast.query.grants import check_admitted
from holdfast.query.limits import begin_stream
from holdfast.query.operations import REFUSALS, TEXT, WAIT, Call, Operation, Parameter
from holdfast.query.problems import Problem
from holdfast.query.store_specs import StoreSpecs
from holdfast.query.watch_changes import Interest, interest_in_key, interest_in_prefix
from holdfast.query.watch_places import BadEventId, EventPlace, ForeignEventId, abandoned, place_after
from holdfast.query.watch_reader import KEPT_BYTES, SharedReader, WatchedVersionGone
from holdfast.query.watch_stream import EventStream, NewestVersion, Watcher, as_problem
from holdfast.stores.spec import StoreSpec
from holdfast.words import NOTHING, Version

WATCH_PATH: Final = "/v1/stores/{store}/watch"

HEARTBEAT_SECONDS: Final = 15.0
"""Proxies often close a connection that is silent for a minute."""
_PARAMETERS: Final = (
    Parameter("key", TEXT, "One key. Give this or a prefix."),
    Parameter("prefix", TEXT, "Keys that begin with this."),
    Parameter("from_version", TEXT, "The first version whose changes are sent; the next one unless given."),
    replace(WAIT, text="How long to wait for a first version that is far beyond the newest one, 2s unless given."),
)
_LAST_EVENT: Final = Parameter(
    "Last-Event-ID", TEXT, "The `id` of the last event that was received: goes on after it, whatever from_version says."
)
_THREADS: Final = 2
"""Threads that read the log for watchers: those that catch up must not delay other requests."""
_AHEAD: Final = 10
"""How far beyond the newest version known here a watcher may begin, and its first event just comes later. Clients that
reconnect have seen newer versions on another instance."""


class Watches:
    """All watchers of an instance."""

    def __init__(
        self,
        source: LogReader,
        specs: StoreSpecs,
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._source, self._specs = source, specs
        self._heartbeat, self._kept_bytes = heartbeat, kept_bytes
        self._newest = NewestVersion(source)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-watch")
        self._readers: dict[str, SharedReader] = {}

    def end(self) -> None:
        """Ends all watches, each with a last event. Can be called on any thread."""
        self._newest.close()

    def close(self) -> None:
        """Ends the threads, once REST has ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def kept_bytes(self) -> int:
        """How many bytes of versions are kept for the watchers of all stores."""
        return sum(reader.kept_bytes for reader in self._readers.values())

    def operations(self) -> list[Operation]:
        text = "The changes of a store as they are committed, as server-sent events."
        errors = (*REFUSALS, 410)
        return [
            Operation(
                "watch",
                WATCH_PATH,
                text,
                self.watch,
                None,
                _PARAMETERS,
                errors,
                media="text/event-stream",
                headers=(_LAST_EVENT,),
                tag="Changes",
                returns="Server-sent events: one per change, and a heartbeat while there is none.",
            )
        ]

    async def watch(self, call: Call) -> Response:
        given, request = call.given, call.request
        spec = self._specs[call.store]
        interest = self._interest(spec, given)
        begin_stream(request.scope, is_scan=False)
        reader = self._readers.get(spec.name)
        if reader is None:
            reader = SharedReader(self._source, self._specs, spec.name, self._threads, self._kept_bytes)
            self._readers[spec.name] = reader
        try:
            begin = self._begin(request.headers.get(_LAST_EVENT.name), given.get("from_version"))
            newest = await self._newest_for(begin, call.freshness.wait)
            if begin is not None and not await reader.has(begin):
                raise abandoned(begin)
            begin = max(begin or await self._after(newest), EventPlace(Version(spec.after + 1)))
            if begin.version <= newest:  # what can't be read is refused here, where the status can say so
                version = await reader.version(begin.version)
                if version.pieces and not spec.durable:
                    await reader.changes(version, 0)
        except (ForeignEventId, WatchedVersionGone) as error:
            raise as_problem(error) from error
        recheck = partial(check_admitted, request.scope)
        return EventStream(
            Watcher(spec.name, interest, begin, self._source.log.id, reader, self._newest, self._heartbeat, recheck)
        )

    def _interest(self, spec: StoreSpec, given: Mapping[str, str]) -> Interest:
        if "key" in given and "prefix" in given:
            raise Problem(400, "bad_parameter", "Both key and prefix are given.", "Give one of them, or none.")
        if "key" in given:
            return interest_in_key(spec, given["key"], spec.partitions(self._source.app.partitions))
        return interest_in_prefix(spec, given["prefix"]) if "prefix" in given else Interest()

    def _begin(self, last_event: str | None, from_version: str | None) -> EventPlace | None:
        """Where a watcher goes on; None: with the next version. A browser that reconnects sends both: the id counts."""
        if last_event:
            try:
                return place_after(last_event, self._source.log.id)
            except BadEventId as error:
                what = "Send the id of the last event as it was received, or no Last-Event-ID."
                raise Problem(400, "bad_event_id", str(error), what) from error
        if from_version is None:
            return None
        if not (from_version.isascii() and from_version.isdigit() and 1 <= len(from_version) <= 18):
            what = "Give the first version whose changes you want: that of an answer plus one, or 1 for all there are."
            raise Problem(400, "bad_parameter", f"from_version={from_version[:100]!r} is not a version.", what)
        return EventPlace(Version(max(1, int(from_version))))

    async def _after(self, newest: Version) -> EventPlace:
        """The place after the newest version."""
        found = await asyncio.get_running_loop().run_in_executor(self._threads, self._source.id_at, newest)
        return EventPlace(Version(newest + 1), commit=(found or "") if newest else "")

    async def _newest_for(self, begin: EventPlace | None, wait: dt.timedelta) -> Version:
        """The newest version, once a watcher may begin at its place: one far beyond it would wait without an end."""
        newest = await self._newest_version()
        until = SYSTEM_CLOCK.monotonic() + wait.total_seconds()
        while begin is not None and begin.version > newest + _AHEAD and not self._newest.closed:
            if (left := until - SYSTEM_CLOCK.monotonic()) <= 0:
                raise not_committed(begin.version, newest)
            await self._newest.wait(Version(begin.version - _AHEAD), left)
            newest = await self._newest_version()
        return newest

    async def _newest_version(self) -> Version:
        """The newest version. An instance that has just started may not have looked yet."""
        if self._newest.known != NOTHING:
            return self._newest.known
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._source.newest)
