"""Writes every version to every sink, in order. The next commit, or a clean stop, records how far each sink is.

A sink that a crash interrupted catches up from the segments at the next start, before any new commit. The cleaner keeps
the segments that the slowest sink still needs. A batch does not wait for its own sinks: `offer` passes a commit to a
thread, and the next commit waits in `catch_up` until the sinks have written it. A sink that raises is called again, as
often as the settings say. A sink that hangs can't be ended: the app stops without it, and what it does later isn't
recorded. Only the driver that leads delivers.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast import faults
from holdfast.errors import ErrorCategory, HoldfastError, Interrupted, TopologyError
from holdfast.log.commits import Commit
from holdfast.log.log import Log
from holdfast.log.notes import sink_start
from holdfast.log.sinks import FOLDER, folders_in
from holdfast.pipeline.sinks.builtin import Files, check_version_column
from holdfast.pipeline.sinks.outputs import rows_of
from holdfast.topology.outputs import AggregateRows, ChangedEntries, Output
from holdfast.topology.sink import Sink, Timeline
from holdfast.topology.topology import Topology
from holdfast.words import NOTHING, Version

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
"""How often a wait for the sinks looks whether it has been given up."""
_LATER = " Sinks get the versions they lack at the next start."
_LOOKS_PER_WARNING = 100
"""A wait that takes long is reported every ten seconds."""


class SinkRaised(HoldfastError):
    """A sink raised an error. The same call may work in a moment."""

    category = ErrorCategory.RETRY


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
    """The app's sinks, each with its output, whose tasks and schemas are those that the topology took from the log."""
    outputs = topology.outputs
    return [Feed(node.name, outputs[node.source], node.sink) for node in topology.sinks]


def opened(feeds: Sequence[Feed], log: Log) -> Sequence[Feed]:
    """The feeds after their sinks were opened for this log. A sink may refuse, so a start does it before it leads."""
    newest = log.newest()
    recorded = log.sinks.at(newest)

    def commit_of(version: Version) -> str | None:
        """Asks the log each time: a driver that still runs makes versions meanwhile."""
        found = log.commit(version)
        return None if found is None else found.id

    at, folders = Version(newest.version) if newest else NOTHING, folders_in(recorded)
    for feed in feeds:
        position = recorded.get(feed.name)
        feed.sink.open(
            Timeline(log=log.id, newest=at, position=position, commit_of=commit_of, folders=folders),
        )
    return feeds


def check_columns(topology: Topology) -> None:
    """Rows of a store that already have the column that a sink is asked to add are refused. Processors forward any."""
    outputs = topology.outputs
    for node in topology.sinks:
        output = outputs[node.source]
        if getattr(node.sink, "version_column", False) and isinstance(output, AggregateRows | ChangedEntries):
            results = output.store.columns.fields if isinstance(output, AggregateRows) else ()
            check_version_column(field.name for field in (*output.store.key.fields, *results))


def check_folders(topology: Topology) -> None:
    """Two file sinks in one folder are refused: their files would have the same names."""
    folders: dict[str, str] = {}
    for node in topology.sinks:
        if isinstance(node.sink, Files) and (other := folders.setdefault(node.sink.folder, node.name)) != node.name:
            raise TopologyError(
                f"The sinks {other!r} and {node.name!r} write to one folder, {node.sink.folder}, and their files would "
                "have the same names. Give each a folder of its own."
            )


Retry = Callable[[Callable[[], None]], None]
"""Repeats a call whose error has the category RETRY, up to a limit."""


class SinkRunner:
    """All sinks of an app, which are opened already."""

    def __init__(
        self,
        log: Log,
        feeds: Sequence[Feed],
        *,
        retry: Retry,
        check_leads: Callable[[], None],
        on_failure: Callable[[HoldfastError], None] = lambda error: None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log = log
        self._check_leads = check_leads
        self._on_failure = on_failure
        self._given_up = given_up
        self._feeds = feeds
        self._retry = retry
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._failure: HoldfastError | None = None
        self._target = NOTHING
        self._offered: Commit | None = None
        self._stopping = False
        self._abandoned = False
        self._newest = newest = log.newest()
        self._recorded = log.sinks.at(newest)
        """The positions that the log has. Those of sinks that the code no longer has stay, in case they come back."""
        self._positions = {feed.name: self._starting_position(feed, newest) for feed in feeds}

    @property
    def positions(self) -> dict[str, Version]:
        """The newest version that each sink, and each folder, has, also former ones: what the next commit records."""
        with self._changed:
            files = [(feed.name, feed.sink.folder_id) for feed in self._feeds if isinstance(feed.sink, Files)]
            folders = {f"{FOLDER}{id}": self._positions[name] for name, id in files if id is not None}
            return {**self._recorded, **self._positions, **folders}

    def start(self) -> None:
        """Starts the thread that writes; from then on `offer` returns at once."""
        self._thread = threading.Thread(target=self._run, name="holdfast-sinks", daemon=True)
        self._thread.start()

    def offer(self, commit: Commit) -> None:
        """Writes a new version, in the thread if it was started."""
        with self._changed:
            self._offered = self._newest = commit
        self._request(Version(commit.version))

    def catch_up(self, version: Version) -> None:
        """Returns when every sink has written `version`, which the log has; another driver may have made it.

        Raises the error of a sink that failed, and Interrupted when the app stops and the time of its batch is used. A
        batch asks here before it commits, so one that was given up never commits after the app has stopped.
        """
        self._request(version)
        looks, done = 0, False
        with self._changed:
            while not done:
                done = self._changed.wait_for(
                    lambda: self._failure is not None or self._all_at(version), timeout=_LOOK_SECONDS
                )
                if self._given_up():
                    late = self._behind(version)
                    raise Interrupted(f"The app stops, and the time of its batch is used. {late}{_LATER}")
                looks += 1
                if not done and looks % _LOOKS_PER_WARNING == 0:
                    logger.warning("The app waits for its sinks. %s", self._behind(version))
            if self._failure is not None:
                raise self._failure

    def check_next(self) -> None:
        """Reads the rows of the next version that each sink lacks, as `catch_up` does, and writes nothing."""
        newest = NOTHING if self._newest is None else self._newest.version
        for feed in self._feeds:
            if (at := self._positions[feed.name]) < newest:
                for rows in rows_of(feed.output, self._log, self._commit(feed, Version(at + 1))):
                    del rows

    def check(self) -> None:
        """Raises the error that stopped a sink, if there is one."""
        if self._failure is not None:
            raise self._failure

    def stop(self, timeout: float | None = None) -> bool:
        """Writes the offered versions and the positions, then ends the thread. False if that takes longer.

        What a sink or the log does after the timeout is left to the thread, which then records nothing.
        """
        thread = self._thread
        if thread is None:
            self._record()
            return True
        if thread is threading.current_thread():  # a sink's function stops the app
            return True
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        thread.join(timeout)
        if not thread.is_alive():
            return True
        with self._changed:
            abandoned, self._abandoned = self._abandoned, True
        if not abandoned:
            what = self._behind(self._target) or "The log doesn't answer, so the sinks' positions aren't recorded."
            logger.warning("the app stops without waiting longer. %s%s", what, _LATER)
        return False

    def _record(self) -> None:
        """Writes the positions at a clean stop. Without them the sinks only get the newest version again."""
        positions, newest = self.positions, self._newest
        if newest is None or positions == self._recorded or not self._all_at(Version(newest.version)):
            return
        try:
            self._log.sinks.mark(newest, positions)
        except HoldfastError as error:
            logger.warning("the sinks get version %d again at the next start: %s", newest.version, error)
        else:
            self._recorded = positions

    def _behind(self, version: Version) -> str:
        """Which sinks have not written a version, in one sentence; empty if there are none."""
        late = [f"sink {name!r} has written {at}" for name, at in self._positions.items() if at < version]
        return f"Of the versions up to {version}, {', '.join(late)}." if late else ""

    def _request(self, version: Version) -> None:
        if self._thread is None:
            self._bring_to(version)
            return
        with self._changed:
            self._target = max(self._target, version)
            self._changed.notify_all()

    def _all_at(self, version: Version) -> bool:
        return all(at >= version for at in self._positions.values())

    def _run(self) -> None:
        while (version := self._next_version()) is not None:
            try:
                self._bring_to(version)
            except Interrupted as error:
                self._end(error)
                return
            except BaseException as error:  # noqa: BLE001  SystemExit too: it would end the thread unnoticed
                self._fail(error)
                return
        if not self._abandoned:
            self._record()

    def _next_version(self) -> Version | None:
        """The version that all sinks should write next, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or not self._all_at(self._target))
            return None if self._abandoned or self._all_at(self._target) else self._target

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, HoldfastError) and error.category is not ErrorCategory.RETRY:
            failure = error
        else:
            failure = SinkFailed(str(error) or repr(error))  # `_retry` has repeated it already
        logger.error("%s", failure)
        self._end(failure)
        self._on_failure(failure)

    def _end(self, why: HoldfastError) -> None:
        with self._changed:
            self._failure = why
            self._changed.notify_all()

    def _bring_to(self, version: Version) -> None:
        if self._all_at(version):
            return
        self._check_leads()
        for feed in self._feeds:
            while (at := self._positions[feed.name]) < version:
                self._write(feed, self._commit(feed, Version(at + 1)))

    def _commit(self, feed: Feed, version: Version) -> Commit:
        offered = self._offered
        found = offered if offered is not None and offered.version == version else self._log.commit(version)
        if found is None:
            raise VersionCleaned(
                f"Sink {feed.name!r} is at version {version - 1} and the log has no version {version}. "
                "Give the sink another name to start it at the newest version."
            )
        return found

    def _write(self, feed: Feed, commit: Commit) -> None:
        version = Version(commit.version)

        def attempt() -> None:
            faults.point("sink.before")
            try:
                feed.sink.write(version, commit.id, rows_of(feed.output, self._log, commit))
            except HoldfastError:
                raise
            except Exception as error:  # a user's function may raise anything
                raise SinkRaised(
                    f"Sink {feed.name!r} raised {type(error).__name__} at version {version}: {error}"
                ) from error
            if self._abandoned:
                raise Interrupted(f"Sink {feed.name!r} wrote version {version} after the app had stopped.")
            faults.point("sink.after")

        try:
            self._retry(attempt)
        except SinkRaised as error:
            raise SinkFailed(
                f"{error}. The version exists and the sink gets it again when the app starts."
            ) from error.__cause__
        with self._changed:
            self._positions[feed.name] = version
            self._changed.notify_all()

    def _starting_position(self, feed: Feed, newest: Commit | None) -> Version:
        return NOTHING if newest is None else sink_start(feed.name, self._recorded, newest, self._log.chain).after
