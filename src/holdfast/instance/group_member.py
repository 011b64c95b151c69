"""An instance in its group: a thread that takes its steps (`group.member_steps`) and waits between them.

Another thread writes heartbeats while a step takes long.
"""

import logging
import os
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING

from holdfast.chance import new_id
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import HoldfastError
from holdfast.group.failure_detector import FailureDetector
from holdfast.group.member_steps import MemberSteps
from holdfast.group.members import Member, check_id
from holdfast.group.membership import Replaced
from holdfast.group.signing import signing
from holdfast.group.storage import open_group_storage
from holdfast.instance.addresses import rest_address
from holdfast.instance.events import report_problem
from holdfast.instance.group_host import InstanceHost
from holdfast.instance.instance import Instance
from holdfast.lasting import lasting_thread

if TYPE_CHECKING:
    from holdfast.group.coordinator import Coordinator

_LOG = logging.getLogger(__name__)
_DRAIN_LOOK = 0.2


class GroupMember:
    """One instance as a member of its group, from its creation on."""

    def __init__(self, instance: Instance, rest: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        config = instance.config
        self._instance = instance
        self._clock = clock
        opened = open_group_storage(config.log_url, config.log, config.group, config.retry)
        self._storage = signing(opened, instance.log.id, instance.credentials.tokens)
        self._wake = threading.Condition()
        self._look = False
        self._stopping = False
        self._problem: str | None = None
        member = Member(
            log=instance.log.id,
            id=check_id(config.name),
            incarnation=1,
            process=instance.process,
            beat=0,
            address=instance.address,
            rest=None if rest is None else rest_address(config, rest),
            host=socket.gethostname(),
            pid=os.getpid(),
            tags=config.tags,
        )
        self._steps = MemberSteps(
            self._storage,
            member,
            InstanceHost(instance, self._storage),
            clock,
            interval=config.group.heartbeat_interval.total_seconds(),
            timeout=config.group.session_timeout.total_seconds(),
            # Those that an app has started end with it, and would only move tasks to each other while they end.
            new_coordinator=None if config.embedded else self._new_coordinator,
            app_file=config.app_file,
        )
        instance.look_at_group = self.look
        instance.look_back_in_group = self._look_back
        report = partial(report_problem, instance.events, None)
        self._thread = lasting_thread("group", self._run, report)
        self._thread.start()
        lasting_thread("heartbeat", self._keep_alive, report).start()

    def look(self, number: int) -> None:
        """There is a generation of this number: looks at the log at once."""
        if self._steps.hear(number):
            self._look_now()

    def _look_back(self) -> None:
        self._steps.look_back()
        self._look_now()

    def _look_now(self) -> None:
        with self._wake:
            self._look = True
            self._wake.notify_all()

    def drain(self, seconds: float) -> None:
        """Hands the tasks over to others, for at most this long. This instance serves them meanwhile."""
        self._steps.start_leaving()
        self._look_now()
        until = self._clock.monotonic() + seconds
        with self._wake:
            while self._takes_steps() and not self._steps.has_handed_over() and self._clock.monotonic() < until:
                self._wake.wait(_DRAIN_LOOK)

    def _takes_steps(self) -> bool:
        """Whether the thread goes on: it ends also when a newer process has this id."""
        return self._thread.is_alive() and not self._stopping

    def stop(self) -> None:
        """Ends the thread and says that this instance has left."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(self._instance.config.stop_seconds * 0.2)
        try:
            self._steps.leave()
        except HoldfastError as error:
            _LOG.debug("the group isn't told that this instance has left: %s", error)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._look or self._stopping, self._steps.pace)
                if self._stopping:
                    return
                self._look = False
            try:
                self._steps.step()
                self._problem = None
            except Replaced as replaced:
                self._instance.fail(replaced)
                return
            except HoldfastError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    _LOG.warning("the group can't be followed, and this is tried again: %s", error)
            with self._wake:
                self._wake.notify_all()

    def _keep_alive(self) -> None:
        while True:
            with self._wake:
                if self._wake.wait_for(lambda: self._stopping, self._steps.pace / 2):
                    return
            try:
                self._steps.keep_alive()
            except Replaced as replaced:
                self._instance.fail(replaced)
                return
            except HoldfastError as error:
                _LOG.debug("a heartbeat is missing: %s", error)

    def _new_coordinator(self) -> "Coordinator":
        # Few instances coordinate, and every start of an app waits for the imports of its own.
        from holdfast.group.coordinator import Coordinator
        from holdfast.group.rules import assignor_of, rules_of

        config = self._instance.config
        return Coordinator(
            self._storage,
            self._instance.log.id,
            config.name,
            FailureDetector(
                config.group.heartbeat_interval.total_seconds(), config.group.session_timeout.total_seconds()
            ),
            assignor_of(config.group),
            rules_of(config.group, config.standbys, config.restore.acceptable_lag),
            new_id,
            keeps_rules=True,
        )
