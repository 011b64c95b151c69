"""Writes every version to every sink, in order. The next commit, or a clean stop, records how far each sink is.

A sink that a crash interrupted catches up from the segments at the next start, before any new commit. The cleaner keeps
the segments that the slowest sink still needs. A batch does not wait for its own sinks: `offer` passes a commit to a
thread, and the next commit waits in `catch_up` until the sinks have written it.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast import faults
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.pipeline.sinks.outputs import rows_of
from holdfast.topology.outputs import Output
from holdfast.topology.sink import Sink
from holdfast.topology.topology import Topology
from holdfast.words import NOTHING, Version

logger = logging.getLogger(__name__)


class SinkFailed(HoldfastError):
    """A sink failed to write a version. The version exists; the sink gets it again at the next start."""

    category = ErrorCategory.INVALID


class VersionCleaned(HoldfastError):
    """A sink needs a version that the log no longer has."""

    category = ErrorCategory.DATA


@dataclass(frozen=True)
class Feed:
    """One sink, its name in the log, and the output it takes."""

    name: str
    output: Output
    sink: Sink


def feeds_of(topology: Topology) -> list[Feed]:
    """The app's sinks, each with its output."""
    outputs = topology.outputs
    return [Feed(node.name, outputs[node.source], node.sink) for node in topology.sinks]


Retry = Callable[[Callable[[], None]], None]
"""Repeats a call whose error has the category RETRY, up to a limit."""


class SinkRunner:
    """All sinks of an app."""

    def __init__(
        self,
        log: Log,
        feeds: Sequence[Feed],
        *,
        retry: Retry,
        on_failure: Callable[[HoldfastError], None] = lambda error: None,
    ) -> None:
        self._log = log
        self._on_failure = on_failure
        self._feeds = feeds
        self._retry = retry
        self._waiting: queue.SimpleQueue[Commit | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._failure: HoldfastError | None = None
        for feed in feeds:
            feed.sink.open(log.id)
        newest = log.newest()
        self._newest = Version(newest.version) if newest else NOTHING
        self._recorded = log.sinks.at(newest)
        """The positions that the log has. Those of sinks that the code no longer has stay, in case they come back."""
        self._positions = {feed.name: self._starting_position(feed) for feed in feeds}

    @property
    def positions(self) -> dict[str, Version]:
        """The newest version that each sink has written, also of former sinks: what the next commit records."""
        with self._changed:
            return {**self._recorded, **self._positions}

    def start(self) -> None:
        """Starts the thread that writes; from then on `offer` returns at once."""
        self._thread = threading.Thread(target=self._run, name="holdfast-sinks", daemon=True)
        self._thread.start()

    def offer(self, commit: Commit) -> None:
        """Writes a new version, in the thread if it was started."""
        self._newest = Version(commit.version)
        if self._thread is None:
            self._bring_to(Version(commit.version), commit)
        else:
            self._waiting.put(commit)

    def catch_up(self, version: Version) -> None:
        """Returns when every sink has written `version`. Raises the error of a sink that failed."""
        if self._thread is None:
            self._bring_to(version)
            return
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._all_at(version))
            if self._failure is not None:
                raise self._failure

    def check(self) -> None:
        """Raises the error that stopped a sink, if there is one."""
        if self._failure is not None:
            raise self._failure

    def stop(self, timeout: float | None = None) -> None:
        """Writes the offered versions, then ends the thread. A sink that hangs longer gets its version again."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(timeout)
            self._thread = None
        self._record()

    def _record(self) -> None:
        """Writes the positions at a clean stop. Without them the sinks only get the newest version again."""
        positions = self.positions
        if positions == self._recorded or self._newest == NOTHING or not self._all_at(self._newest):
            return
        try:
            self._log.sinks.mark(self._newest, positions)
        except HoldfastError as error:
            logger.warning("the sinks get version %d again at the next start: %s", self._newest, error)
        else:
            self._recorded = positions

    def _all_at(self, version: Version) -> bool:
        return all(at >= version for at in self._positions.values())

    def _run(self) -> None:
        while (commit := self._waiting.get()) is not None:
            try:
                self._bring_to(Version(commit.version), commit)
            except BaseException as error:  # noqa: BLE001  SystemExit too: it would end the thread unnoticed
                failure = SinkFailed(str(error) or repr(error))  # `_retry` has repeated it already
                logger.error("%s", failure)
                with self._changed:
                    self._failure = failure
                    self._changed.notify_all()
                self._on_failure(failure)
                return

    def _bring_to(self, version: Version, newest: Commit | None = None) -> None:
        for feed in self._feeds:
            while (at := self._positions[feed.name]) < version:
                following = Version(at + 1)
                commit = newest if newest is not None and newest.version == following else self._log.commit(following)
                if commit is None:
                    raise VersionCleaned(
                        f"Sink {feed.name!r} is at version {at} and the log has no version {following}. "
                        "Give the sink another name to start it at the newest version."
                    )
                self._write(feed, commit)

    def _write(self, feed: Feed, commit: Commit) -> None:
        version = Version(commit.version)

        def attempt() -> None:
            faults.point("sink.before")
            feed.sink.write(version, rows_of(feed.output, self._log, commit))
            faults.point("sink.after")

        try:
            self._retry(attempt)
        except HoldfastError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise SinkFailed(
                f"Sink {feed.name!r} raised {type(error).__name__} at version {version}: {error}. The version "
                "exists and the sink gets it again when the app starts."
            ) from error
        with self._changed:
            self._positions[feed.name] = version
            self._changed.notify_all()

    def _starting_position(self, feed: Feed) -> Version:
        """The sink's position in the log. A new sink starts at the log's newest version."""
        if (known := self._recorded.get(feed.name)) is not None:
            return known
        if self._newest != NOTHING:
            logger.warning("sink %r is new: it gets the versions after version %d", feed.name, self._newest)
        return self._newest
