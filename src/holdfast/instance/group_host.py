"""What the steps of a member need of its instance (`group.member_steps.Host`). Others are asked over the network."""

import logging
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import DamagedObject, HoldfastError
from holdfast.group import members
from holdfast.group.generations import Generation, Generations
from holdfast.group.members import Hosted, Member, MemberState
from holdfast.group.pace import interval_for
from holdfast.group.side_by_side import side_by_side
from holdfast.instance.client import StateClient
from holdfast.instance.config import Role
from holdfast.instance.credentials import NotAuthenticated
from holdfast.instance.events import report_problem
from holdfast.instance.instance import Instance
from holdfast.instance.leftover_state import LeftoverState
from holdfast.instance.log_reader import LogReader
from holdfast.instance.messages import InstanceUnreachable
from holdfast.instance.read_rates import ReadRates
from holdfast.log.documents import UnknownFormat
from holdfast.log.objects import Storage
from holdfast.words import NOTHING, TaskId, Version

if TYPE_CHECKING:
    from holdfast.group.coordinator import Needs

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 2.0
"""How long another process may take to say that it has the id, or to hear of a generation."""
_BEATS = 1.5
"""For so many intervals a holder of the id that can't be asked is watched."""


class InstanceHost:
    """An instance, as its steps in the group need it."""

    def __init__(self, instance: Instance, storage: Storage) -> None:
        """`storage` is that of the log, as this process sees the objects of its group."""
        config = instance.config
        self._instance = instance
        self._storage = storage
        self._rates = ReadRates()
        self._unopened: dict[TaskId, Version] = {}
        """The versions of folders whose tasks are hosted again, until they are opened."""
        self._leftover = LeftoverState(Path(config.state_dir), config.name, config.state.cleanup_delay.total_seconds())

    def replicas(self, now: float) -> Mapping[str, Hosted]:
        hosted = self._instance.hosted()
        self._leftover.look(now, [each.replica.task for each in hosted])
        rates = self._rates.look(now, {each.replica.task: each.reads for each in hosted})
        found = {
            str(task): Hosted(version=version, running=False) for task, version in self._leftover.versions().items()
        }
        for each in hosted:
            task = each.replica.task
            if each.replica.is_open:
                self._unopened.pop(task, None)
            here, loading = each.progress.report.loaded
            found[str(task)] = Hosted(
                version=self._unopened.get(task, each.replica.version),
                running=each.caught_up,
                bytes=self._instance.disk_bytes(each) or here,
                loading=loading,
                load=rates[task],
                heavy=each.heavy.heaviest(now, each.replica.specs),
            )
        return found

    def hosted(self) -> Collection[TaskId]:
        return [each.replica.task for each in self._instance.hosted()]

    def use_app(self, number: int) -> None:
        self._instance.use_app(number)

    def drop(self, task: TaskId) -> None:
        self._instance.drop(task)

    def host(self, task: TaskId, *, active: bool) -> None:
        if (stored := self._leftover.versions().get(task, NOTHING)) != NOTHING:
            self._unopened[task] = stored
        self._instance.host(task, Role.ACTIVE if active else Role.STANDBY)

    def not_hosted(self, task: TaskId, error: HoldfastError) -> None:
        report_problem(self._instance.events, task, error)

    def ask_peers(self, generation: Generation) -> None:
        self._instance.peers = {task: generation.replicas(task) for task in generation.tasks}
        self._instance.placement = generation

    def took(self, generation: Generation) -> None:
        self._instance.generation = generation.number

    def look_at_driver(self, *, gone: bool) -> None:
        self._instance.driver_gone = gone

    def needs(self) -> "Needs | None":
        return needs_in(self._instance.source)

    def is_running(self, holder: Member) -> bool:
        credentials, began = self._instance.credentials, SYSTEM_CLOCK.monotonic()
        try:
            with StateClient(holder.address, _ANSWER_SECONDS, credentials=credentials) as client:
                status = client.status()
        except NotAuthenticated:
            # Something runs there. It may be the holder, or another app's instance that has got its address since.
            return self._beats(holder)
        except HoldfastError as error:
            # gRPC may report a host that says nothing like one that refuses, but not at once.
            quick = SYSTEM_CLOCK.monotonic() - began < _ANSWER_SECONDS / 2
            return not (quick and isinstance(error, InstanceUnreachable)) and self._beats(holder)
        return (status.name, status.log, status.process) == (holder.id, holder.log, holder.process)

    def _beats(self, holder: Member) -> bool:
        """Whether a process that can't be asked writes heartbeats: it may be busy, or cut off from this host."""
        storage, group = self._storage, self._instance.config.group
        newest = Generations(storage, holder.log).follow()
        pace = interval_for(
            1 if newest is None else len(newest.members),
            group.heartbeat_interval.total_seconds(),
            group.session_timeout.total_seconds(),
        )
        until = SYSTEM_CLOCK.monotonic() + _BEATS * pace
        while SYSTEM_CLOCK.monotonic() < until:
            SYSTEM_CLOCK.sleep(pace / 10)
            try:
                found = members.read(storage, holder.log, holder.id)
            except (DamagedObject, UnknownFormat):
                continue  # someone else wrote it
            if found != holder:
                return found is not None and found.state is not MemberState.LEFT
        return False

    def tell(self, generation: Generation) -> None:
        others = [member.flight for id, member in generation.members.items() if id != self._instance.config.name]
        side_by_side(partial(self._tell, generation.number), others)

    def _tell(self, number: int, address: str) -> None:
        try:
            with StateClient(address, _ANSWER_SECONDS, credentials=self._instance.credentials) as client:
                client.generation(number)
        except HoldfastError as error:
            _LOG.debug("the instance at %s wasn't told of generation %d: %s", address, number, error)


def needs_in(source: LogReader) -> "Needs | None":
    """The tasks of the app file of the newest commit; None if there is no commit yet."""
    # Few instances coordinate, and every start of an app waits for the imports of its own.
    from holdfast.group.rules import needs_of

    newest = source.newest()
    return None if newest == NOTHING else needs_of(source.app_of(newest), newest)
