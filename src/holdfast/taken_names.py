"""The apps of this process, by their ids: Spark runs one query of a name per session, and an app's has the app's id.

A name is taken before an app's start changes anything, and is free again when the app has stopped or failed. An app
that replaces another one takes the name beside it, and stops it when it has checked what could make its own start fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.states import AppState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_FOUND = {AppState.CREATED: "is being started", AppState.RESTORING: "is being started", AppState.STOPPING: "is ending"}


class AppNameTaken(HoldfastError):
    """Another app with the same id runs on the Spark session."""

    category = ErrorCategory.INVALID


class NotRunning(HoldfastError):
    """No app of this id runs in this process."""

    category = ErrorCategory.INVALID


class Startable(Protocol):
    """What is needed of an app."""

    id: str

    @property
    def state(self) -> AppState: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, eq=False)
class TakenName:
    """The name of an app's query while the app runs."""

    app: Startable
    session: SparkSession
    key: str
    """Of the session."""
    log: str
    is_given_up: Callable[[], bool]
    """Whether the app, which perhaps has no query yet, has stopped or failed."""
    replaced: tuple[Startable, ...] = ()

    def make_way(self) -> None:
        """Stops the apps that this one replaces. Raises if Spark's query of one of them can't be stopped."""
        for each in self.replaced:
            each.stop()
        if self.replaced and (query := _query_of(self.session, self.app.id)) is not None:
            raise _taken(self.app.id, query, "is ending")

    def free(self) -> None:
        with _taking:
            if self in _names:
                _names.remove(self)


_names: list[TakenName] = []
"""Those taken later come later."""
_taking = threading.Lock()


def take_name(
    app: Startable, session: SparkSession, log: str, is_given_up: Callable[[], bool], *, replace: bool
) -> TakenName:
    """Takes the name of an app's query. Raises if another app has it, unless this one replaces it."""
    java: Any = session._jsparkSession
    key = str(java.sessionUUID())
    query = _query_of(session, app.id)
    with _taking:
        same_id = [each for each in _names if each.app.id == app.id and each.app is not app]
        on_session = [each for each in same_id if each.key == key]
        live = [each for each in on_session if not each.is_given_up()]
        if not replace and (query is not None or live):
            raise _taken(app.id, query, _found(live[-1] if live else on_session[-1] if on_session else None))
        if query is not None and not on_session:
            raise _taken(app.id, query, None)
        replaced = [each.app for each in same_id if each.key == key or each.log == log] if replace else []
        for each in on_session:
            if each.is_given_up() and not replace:
                _names.remove(each)  # it has failed, and nothing of it is in the way
        name = TakenName(app, session, key, log, is_given_up, tuple(replaced))
        _names.append(name)
        return name


def find(id: str) -> Startable:
    """The app of this id that was started last."""
    with _taking:
        apps = [each.app for each in _names]
    found = [app for app in apps if app.id == id]
    if not found:
        ids = ", ".join(sorted({repr(app.id) for app in apps})) or "none"
        raise NotRunning(
            f"No app {id!r} runs in this process. Those that do: {ids}. Start one with hf.App({id!r}, ...).start()."
        )
    return found[-1]


def _query_of(session: SparkSession, id: str) -> StreamingQuery | None:
    return next((query for query in session.streams.active if query.name == id), None)


def _found(name: TakenName | None) -> str | None:
    if name is None:
        return None
    return "is ending" if name.is_given_up() else _FOUND.get(name.app.state, "runs")


def _taken(id: str, query: StreamingQuery | None, found: str | None) -> AppNameTaken:
    which = f" (Spark query {query.id}, run {query.runId})" if query is not None else ""
    if found is None:
        return AppNameTaken(
            f"A streaming query named {id!r} runs on this Spark session already{which}, and it isn't that of an hf.App "
            "of this process. Stop it, as spark.streams.active shows it, or give this app another id."
        )
    return AppNameTaken(
        f"An app named {id!r} {found} on this Spark session already{which}. Replace it with app.start(replace=True) or "
        f"app.run(replace=True), or stop it with hf.running({id!r}).stop(). To run two apps at once, give this one "
        f"another id than {id!r}, also if its folders are different."
    )
