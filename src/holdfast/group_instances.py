"""The instances of an app as its driver sees them: a group that it coordinates.

The app starts them itself, or they run as servers and the app waits until they host all tasks. From there on both are
the same: their heartbeats are in the log, the generation says where tasks are, and the driver asks the members that
have them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from functools import partial

from holdfast.calls import Calls
from holdfast.clock import SYSTEM_CLOCK
from holdfast.contacts import CALL_SECONDS, STATUS_SECONDS, Contact, News, patience_of
from holdfast.coordinating import DriverCoordinator
from holdfast.embedded import EmbeddedProcesses
from holdfast.errors import ErrorCategory, HoldfastError, Interrupted
from holdfast.group.candidates import Wanted
from holdfast.group.coordinator import Needs
from holdfast.group.generations import Address, Generation
from holdfast.group.rebalances import RebalanceEvent, RebalancePhase, moves, rebalances
from holdfast.group.signing import signing
from holdfast.group.storage import open_group_storage
from holdfast.instance.config import Phase
from holdfast.instance.credentials import Credentials, NotAuthenticated
from holdfast.instance.events import RestoreEvent
from holdfast.instance.messages import AppStateMessage, InstanceStatus, InstanceUnavailable, TaskStatus
from holdfast.instances import InstanceFailed
from holdfast.log.chain import CommitChain
from holdfast.log.commits import BEGINNING, Point
from holdfast.log.leadership import Leadership
from holdfast.log.log import Log
from holdfast.rebalancing import Rebalances
from holdfast.settings.model import Settings
from holdfast.states import AppState
from holdfast.stores.layouts.due import Due
from holdfast.words import TaskId, Version

logger = logging.getLogger(__name__)

_LOOK = 0.02
_LONGEST_LOOK = 0.5
_WAITING_SECONDS = 30.0
"""How often an app that waits for instances says so."""
_PATIENCE_SECONDS = 5.0
"""Until it says so for the first time: instances that wait for the log join within a moment."""
_NAMED = 5
_CALLS = 16


class GroupInstances:
    """All instances of one app."""

    def __init__(
        self,
        app: str,
        settings: Settings,
        *,
        app_file: int,
        on_event: Callable[[RestoreEvent], None],
        on_failure: Callable[[BaseException], None],
        on_rebalance: Callable[[RebalanceEvent], None] = lambda event: None,
        alert: Callable[[BaseException], None] = logger.error,
        stopped: Callable[[], bool] = lambda: False,
        leadership: Leadership | None = None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._app_file = app_file
        self.credentials = Credentials.of(settings.security)
        self._on_event = on_event
        self._on_failure = on_failure
        self._alert = alert
        self._stopped = stopped
        storage = open_group_storage(settings.log_url(app), settings.log, settings.group, settings.retry)
        log = Log.identify(storage)
        group = signing(storage, log, self.credentials.tokens)
        self._coordinator = DriverCoordinator(group, log, settings, self._on_generation, leadership, alert)
        self._processes: EmbeddedProcesses | None = None
        self._tasks: list[Wanted] = []
        self._news = News(app_state=AppStateMessage(str(AppState.RESTORING)))
        self._newest = BEGINNING
        self._chain = CommitChain(storage, log)
        self._generation: Generation | None = None
        self._contacts: dict[str, Contact] = {}
        self._changing = threading.RLock()
        self._calls = Calls(_CALLS)
        self._gave_up: InstanceFailed | None = None
        self._errors: dict[str, HoldfastError] = {}
        """Why members can't be asked, since they last answered."""
        self._closed = threading.Event()
        self._rebalances = Rebalances(app, on_rebalance, self._has_settled, self._closed)

    @property
    def rest_addresses(self) -> tuple[str, ...]:
        members = {} if self._generation is None else self._generation.members
        ids = sorted(members, key=lambda id: (len(id), id))
        return tuple(rest for id in ids if (rest := members[id].rest) is not None)

    def assign(self, tasks: Sequence[TaskId], everywhere: Collection[TaskId] = ()) -> None:
        self._tasks = [Wanted(task=task, everywhere=task in everywhere) for task in tasks]
        if self._settings.instances != "external":
            self._start_processes(self._settings.instances)
        self._coordinator.start(lambda: Needs(app_file=self._app_file, tasks=self._tasks, newest=self._newest.version))

    def _start_processes(self, most: int) -> None:
        """Starts no more processes than there are replicas."""
        if self._processes is None:
            self._processes = EmbeddedProcesses(
                self._app,
                self._settings,
                app_file=self._app_file,
                on_start=self._coordinator.started,
                on_end=self._coordinator.lost,
                on_failure=self._give_up,
                stopped=self._stopped,
            )
        replicas = len(self._tasks) * (1 + self._settings.standbys)
        self._processes.start(most if any(task.everywhere for task in self._tasks) else min(most, replicas))

    def _give_up(self, failure: InstanceFailed) -> None:
        self._gave_up = failure
        self._on_failure(failure)

    # Generations

    def _on_generation(self, after: Generation) -> None:
        """A generation is in effect: its members are told, and what it moves is watched."""
        with self._changing:
            if self._closed.is_set():
                return
            before, self._generation = self._generation or self._coordinator.former, after
            self._news = replace(self._news, generation=after.number)
            for id, contact in list(self._contacts.items()):
                if after.members.get(id) != contact.address:
                    self._contacts.pop(id).close()
            for id, address in after.members.items():
                if id not in self._contacts:
                    self._make_contact(id, address)
            self._tell_all()
            if rebalances(before, after):
                self._rebalances.begin(
                    RebalanceEvent(
                        phase=RebalancePhase.STARTED,
                        generation=after.number,
                        reason=after.reason,
                        moves=moves(before, after),
                    )
                )

    def _make_contact(self, id: str, address: Address) -> None:
        try:
            self._contacts[id] = Contact(
                id,
                address,
                self._news,
                self.credentials,
                on_event=self._on_event,
                on_back=self._coordinator.started,
                on_lost=lambda id: self._coordinator.lost(id, address.incarnation),
                on_hangs=lambda id: self._coordinator.hangs(id, address.incarnation),
                patience=patience_of(self._settings.group.session_timeout.total_seconds()),
                alert=self._alert,
                since=0 if self._processes is not None else -1,
            )
        except HoldfastError as error:  # its address is wrong; the other members must not suffer from that
            logger.warning("instance %s can't be called: %s", id, error)
            self._errors[id] = error
            self._coordinator.lost(id, address.incarnation)

    def _has_settled(self) -> bool:
        """Whether every active replica of the newest generation is ready: the rebalances under way are completed."""
        generation = self._generation
        assert generation is not None
        actives = {place.active for place in generation.tasks.values()}
        found = {(id, task.task) for id, task in self._hosted(generation, actives) if task.phase is Phase.RUNNING}
        found |= self._coordinator.running(generation)  # one that this driver can't call may run all the same
        with self._changing:  # also around the reports: the start of the next one comes after them
            if generation is not self._generation or self._closed.is_set():
                return False
            if any((place.active, task) not in found for task, place in generation.tasks.items()):
                return False
            self._rebalances.complete()
            return True

    def replicas(self) -> Mapping[str, tuple[str, ...]]:
        generation, suspected = self._generation, self._coordinator.suspected
        if generation is None:
            return {}
        away = {generation.members[id].flight for id in suspected if id in generation.members}
        return {task: tuple(sorted(generation.replicas(task), key=away.__contains__)) for task in generation.tasks}

    # Asking members

    def _statuses(self, ids: Iterable[str]) -> Iterable[tuple[str, InstanceStatus | None]]:
        """What members say about themselves, as the answers come; None for one that doesn't answer."""
        asked: dict[Future[InstanceStatus], str] = {}
        with self._changing:
            if self._closed.is_set():
                return
            for id in ids:
                if (contact := self._contacts.get(id)) is not None:
                    asked[self._calls.submit(contact.status)] = id
        for answer in as_completed(asked):
            id = asked[answer]
            try:
                status = answer.result()
                self._errors.pop(id, None)
                yield id, status
            except HoldfastError as error:
                logger.debug("instance %s doesn't answer: %s", id, error)
                self._errors[id] = error
                yield id, None

    def _hosted(self, generation: Generation, ids: Iterable[str]) -> Iterable[tuple[str, TaskStatus]]:
        """The tasks of the members that host those of this generation, as the answers come."""
        for id, status in self._statuses(ids):
            if status is not None and status.generation >= generation.number:
                for task in status.tasks:
                    yield id, task

    def wait_until_ready(self, newest: Point) -> None:
        self.committed(newest)
        began = SYSTEM_CLOCK.monotonic()
        said = began - _WAITING_SECONDS + _PATIENCE_SECONDS
        while True:
            missing = self._not_ready(newest.version)
            if not missing:
                if self._rebalances.under_way:
                    self._has_settled()  # the thread that watches looks less and less often
                return
            if (failure := self._gave_up or self._refused_by_all()) is not None:
                raise failure
            if SYSTEM_CLOCK.monotonic() - said >= _WAITING_SECONDS:
                said = SYSTEM_CLOCK.monotonic()
                self._say_waiting(missing)
            self._pause_since(began)

    def _say_waiting(self, missing: Collection[str]) -> None:
        members = None if self._generation is None else self._generation.members
        if members is None:
            start = f"holdfast instance --app {self._app} --log {self._settings.log_url(self._app)}"
            logger.warning("app %s waits for instances: none has joined. Start them: %s", self._app, start)
            return
        errors = [f"instance {id}: {error}" for id, error in sorted(self._errors.items()) if id in members]
        logger.log(
            logging.WARNING if errors else logging.INFO,
            "app %s waits for %d of its %d tasks (%s), which no instance can read yet. %s",
            self._app,
            len(missing),
            len(self._tasks),
            ", ".join(sorted(missing)[:_NAMED]) + (" ..." if len(missing) > _NAMED else ""),
            " ".join(errors) or "All instances answer, and restore them.",
        )

    def _refused_by_all(self) -> NotAuthenticated | None:
        """Why nobody can be asked; None while a member may still answer."""
        members = {} if self._generation is None else self._generation.members
        errors = [self._errors.get(id) for id in members]
        refusals = [error for error in errors if isinstance(error, NotAuthenticated)]
        return refusals[0] if refusals and len(refusals) == len(errors) else None

    def _not_ready(self, version: Version) -> set[str]:
        """The tasks of which no replica can be read at the version. Raises for one that fails again and again."""
        generation = self._generation
        missing = {str(wanted.task) for wanted in self._tasks}
        if generation is None:
            return missing
        failed: dict[str, TaskStatus] = {}
        for _, task in self._hosted(generation, generation.members):
            if task.phase is Phase.RUNNING and self._is_at(task, version):
                missing.discard(task.task)
            # A retryable error gets as many attempts as in the settings; any other error gets two.
            tries = self._settings.retry.attempts if task.error_category is ErrorCategory.RETRY else 2
            if task.failures >= tries:
                failed[task.task] = task
            if not missing:
                break
        for name in sorted(missing & failed.keys()):
            raise InstanceFailed(f"Task {name} can't be restored: {failed[name].error}")
        return missing

    def _is_at(self, task: TaskStatus, version: Version) -> bool:
        """Whether a replica can be read at a version or a later one, of the timeline of this driver."""
        at, newest = Version(task.readable_to or 0), self._newest
        if at < version:
            return False
        if at == newest.version:
            return task.commit in ("", newest.commit)  # where its stores begin they are empty, in any timeline
        if at < newest.version:
            return True
        # A put of the driver before may have arrived late; or the log was set back, and the instance doesn't know yet.
        found = self._chain.commit(at)
        return found is not None and found.id == task.commit

    def wait_until_visible(self, version: Version) -> None:
        began = SYSTEM_CLOCK.monotonic()
        while not self._is_visible(version):
            if self._gave_up is not None:
                raise self._gave_up
            self._pause_since(began)

    def _is_visible(self, version: Version) -> bool:
        if not self._tasks:
            return True  # nothing is stored, so there is no instance
        generation = self._generation
        if generation is None:
            return False
        seen: set[str] = set()
        behind = False
        for _, status in self._statuses(generation.members):
            for task in () if status is None else status.tasks:
                if self._is_at(task, version):
                    seen.add(task.task)
                # One that is restored isn't read, and one that fails again and again isn't waited for.
                elif task.readable and task.failures < self._settings.retry.attempts:
                    behind = True
        return not behind and generation.tasks.keys() <= seen

    def due(self, version: Version) -> Mapping[str, Due]:
        asked: dict[TaskId, int] = {wanted.task: 0 for wanted in self._tasks}
        found: dict[str, list[Due]] = {}
        while asked:
            by_member: dict[str, list[TaskId]] = {}
            for task, place in asked.items():
                by_member.setdefault(self._member_of(task, place), []).append(task)
            answers = {
                self._calls.submit(partial(self._due, id, version, tasks)): tasks for id, tasks in by_member.items()
            }
            for answer, tasks in answers.items():
                try:
                    for store, due in answer.result().items():
                        found.setdefault(store, []).append(due)
                    for task in tasks:
                        del asked[task]
                except HoldfastError as error:
                    logger.debug("what is due isn't known: %s", error)
                    for task in tasks:
                        asked[task] += 1
        return {store: Due.soonest(several) for store, several in found.items()}

    def _member_of(self, task: TaskId, place: int) -> str:
        """The member with the replica of a task that is asked as the first, second and so on."""
        generation, suspected = self._generation, self._coordinator.suspected
        at = None if generation is None else generation.tasks.get(str(task))
        ids = sorted(at.members, key=suspected.__contains__) if at else []
        if place >= len(ids):
            raise InstanceUnavailable(
                f"none of the {len(ids)} replicas of task {task} says what is due. This is tried again."
            )
        return ids[place]

    def _due(self, id: str, version: Version, tasks: Sequence[TaskId]) -> Mapping[str, Due]:
        contact, generation = self._contacts.get(id), self._generation
        if contact is None or generation is None:
            raise InstanceUnavailable(f"instance {id!r} isn't in the group any more. Ask another one.")
        others = any(len(generation.tasks[str(task)].members) > 1 for task in tasks if str(task) in generation.tasks)
        client = contact.client.within(STATUS_SECONDS if others else CALL_SECONDS)
        newest = self._newest
        return (client.of_commit(newest.commit) if version == newest.version else client).due(version, tasks)

    # What members are told

    def committed(self, newest: Point) -> None:
        """Does not wait: an instance that misses the message finds the version in the log."""
        with self._changing:
            self._newest = newest
            self._news = replace(self._news, newest=newest)
            self._tell_all()

    def set_app_state(self, state: AppState, cause: BaseException | None, driver_metrics: str | None) -> None:
        said = AppStateMessage(str(state), None if cause is None else str(cause), driver_metrics)
        with self._changing:
            self._news = replace(self._news, app_state=said)
            self._tell_all()

    def _tell_all(self) -> None:
        for contact in self._contacts.values():
            contact.tell(self._news)

    # The end

    def _pause_since(self, began: float) -> None:
        """Every look asks all members: one that waits for long looks less often, and waits at most a 20th longer."""
        waited = SYSTEM_CLOCK.monotonic() - began
        self._pause(min(_LONGEST_LOOK, max(_LOOK, waited / 20)))

    def _pause(self, seconds: float) -> None:
        if self._closed.wait(seconds) or self._stopped():
            raise Interrupted("The app was told to stop while it waited for its instances.")

    def stop(self, seconds: float) -> None:
        """Ends the processes that were started. Servers go on."""
        until = SYSTEM_CLOCK.monotonic() + seconds
        self._coordinator.stop(seconds / 2)  # first: no task moves because instances end
        with self._changing:
            self._closed.set()
            contacts, self._contacts = list(self._contacts.values()), {}
        for contact in contacts:
            contact.close()
        self._calls.close()
        if self._processes is not None:
            self._processes.stop(until - SYSTEM_CLOCK.monotonic())
