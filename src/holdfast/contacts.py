"""The driver's contact with one member of the group: what it is told, what it reports, and whether it can be reached.

Each contact has two threads: one sends what is new (a version, a generation, the app's state), the other one asks for
events and waits for them. So a member that hangs keeps no other one waiting, and the end of a process is noticed at
once, because it breaks the connection that waits for events.

A process that hangs breaks nothing. It is noticed because the calls that ask for events aren't answered: several in a
row, for as long as `patience_of` says. One slow call says nothing, and neither does a driver that slept itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
from pyarrow.flight import FlightTimedOutError

from holdfast.backoff import backoff
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.group.generations import Address
from holdfast.instance.client import StateClient
from holdfast.instance.credentials import Credentials, NotAuthenticated
from holdfast.instance.events import Event, ProblemEvent, RestoreEvent
from holdfast.instance.messages import AppStateMessage, InstanceStatus, InstanceUnreachable
from holdfast.lasting import lasting_thread
from holdfast.log.commits import Point
from holdfast.settings.sections import RetrySettings

logger = logging.getLogger(__name__)

CALL_SECONDS = 10.0
STATUS_SECONDS = 2.0
"""How long an instance may take to say how far it is, where others may have its tasks too."""
_RETRY = RetrySettings(first="200ms", longest="1s")
_EVENT_WAIT = 1.0
_UNANSWERED = 3
"""So many calls in a row, the first to the last, have to remain unanswered."""
_LONGEST_PATIENCE = 5.0
_SHORTEST_PATIENCE = 1.5


def patience_of(session_timeout: float) -> float:
    """How many seconds a member may answer nothing before it is reported: half a session, and 5 at most.

    >>> patience_of(10.0), patience_of(60.0), patience_of(0.2)
    (5.0, 5.0, 1.5)
    """
    return max(_SHORTEST_PATIENCE, min(_LONGEST_PATIENCE, session_timeout / 2))


@dataclass(frozen=True)
class News:
    """What a member should know. Only the newest of each counts."""

    newest: Point | None = None
    generation: int = 0
    app_state: AppStateMessage | None = None


class InstanceProblem(HoldfastError):
    """Data of the app turned out to be wrong somewhere, as an instance reports it."""

    category = ErrorCategory.DATA


class Contact:
    """One incarnation of a member, as the driver reaches it."""

    def __init__(
        self,
        id: str,
        address: Address,
        news: News,
        credentials: Credentials,
        *,
        on_event: Callable[[RestoreEvent], None],
        on_lost: Callable[[str], None],
        on_hangs: Callable[[str], None],
        on_back: Callable[[str], None],
        alert: Callable[[BaseException], None],
        patience: float = _LONGEST_PATIENCE,
        since: int = 0,
    ) -> None:
        self.id = id
        self.address = address
        self._on_event = on_event
        self._on_lost = on_lost
        self._on_hangs = on_hangs
        self._patience = patience
        self._on_back = on_back
        self._lost = False
        self._alert = alert
        self._since = since
        self._news, self._told = news, News()
        self._changed = threading.Condition()
        self._closed = False
        self._credentials = credentials
        self.client = StateClient(address.flight, CALL_SECONDS, credentials=credentials)
        for body in (self._send, self._read_events):
            lasting_thread(f"{id}-{body.__name__.strip('_')}", body).start()

    def tell(self, news: News) -> None:
        """Does not wait: a member that misses a message finds out by itself."""
        with self._changed:
            self._news = news
            self._changed.notify_all()

    def status(self) -> InstanceStatus:
        return self.client.within(STATUS_SECONDS).status()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, seconds: float | None, until: Callable[[], bool]) -> bool:
        """Waits; whether the contact goes on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or until(), seconds)
            return not self._closed

    def _send(self) -> None:
        failures = 0
        while self._wait(None, lambda: self._news != self._told):
            news = self._news
            try:
                self._tell_all(news)
                failures = 0
            except Exception as error:  # noqa: BLE001  see _note
                failures += 1
                self._note(error, "wasn't told what is new")
                self._wait(backoff(failures, _RETRY), lambda news=news: self._news != news)  # type: ignore[misc]
        self.client.close()

    def _tell_all(self, news: News) -> None:
        if news.app_state is not None and news.app_state != self._told.app_state:
            self.client.app_state(news.app_state.state, news.app_state.cause, news.app_state.driver_metrics)
            self._told = replace(self._told, app_state=news.app_state)
        if news.generation != self._told.generation:
            self.client.generation(news.generation)
            self._told = replace(self._told, generation=news.generation)
        if news.newest is not None and news.newest != self._told.newest:
            self.client.committed(*news.newest)
        self._told = news

    def _read_events(self) -> None:
        """Passes the instance's events on to the listeners in the driver."""
        since, life, failures, unanswered = self._since, None, 0, 0
        each = self._patience / _UNANSWERED
        wait = min(_EVENT_WAIT, each / 2)
        with StateClient(self.address.flight, each - wait, credentials=self._credentials) as client:
            while not self._closed:
                try:
                    page = client.events(since, wait=wait, life=life)
                except Exception as error:  # noqa: BLE001  see _note
                    failures += 1
                    unanswered = unanswered + 1 if isinstance(error.__cause__, FlightTimedOutError) else 0
                    self._note(error, "doesn't say what happens")
                    if unanswered >= _UNANSWERED and not self._closed:
                        self._lost = True
                        self._on_hangs(self.id)
                    self._wait(backoff(failures, _RETRY), lambda: False)
                    continue
                since, life, failures, unanswered = page.next, page.life, 0, 0
                self._reached()
                for numbered in page.events:
                    try:
                        self._take(numbered.event)
                    except Exception:  # as in _note: this thread has to go on
                        logger.exception("an event of instance %s wasn't passed on: %s", self.id, numbered.event)

    def _note(self, error: Exception, what: str) -> None:
        """A thread that ended by an error would leave the end of the process unnoticed, so any error is noted."""
        level = logging.DEBUG if isinstance(error, HoldfastError) else logging.ERROR
        logger.log(level, "instance %s %s: %s", self.id, what, error)
        if isinstance(error, InstanceUnreachable | NotAuthenticated) and not self._closed:
            self._lost = True
            self._on_lost(self.id)

    def _reached(self) -> None:
        if self._lost:
            self._lost = False
            self._on_back(self.id)

    def _take(self, event: Event) -> None:
        match event:
            case RestoreEvent():
                self._on_event(msgspec.structs.replace(event, instance=self.id))
            case ProblemEvent(severity="error", category=ErrorCategory.DATA):
                self._alert(InstanceProblem(f"instance {self.id}: {event.message}"))
            case ProblemEvent():
                level = logging.ERROR if event.severity == "error" else logging.WARNING
                logger.log(level, "instance %s: %s", self.id, event.message)
