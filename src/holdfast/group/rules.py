"""The settings of a group and the app file, as the coordinator needs them."""

import logging
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.group.candidates import Assign, Wanted
from holdfast.group.coordinator import Needs
from holdfast.group.generations import Rules
from holdfast.group.own_assignor import load_assign
from holdfast.log.appfile import AppSpec
from holdfast.settings.group import GroupSettings
from holdfast.words import TaskId, Version

logger = logging.getLogger(__name__)

_SHORTEST = 0.5
"""A thread may wait for so long on a busy machine, before it does anything."""


def rules_of(group: GroupSettings, standbys: int, acceptable_lag: int) -> Rules:
    tags = tuple(tag.strip() for tag in group.spread_by.split(",") if tag.strip())
    return Rules(standbys=standbys, spread_by=tags, acceptable_lag=acceptable_lag, warmups=group.warmups)


def assignor_of(group: GroupSettings, alert: Callable[[HoldfastError], None] = logger.warning) -> Assign:
    """The built-in assignor, or the user's own. Its first wrong answer is an alert; others that differ are logged.

    Who coordinates waits for it, and has to write its heartbeat meanwhile: so it gets a fifth of a session.
    """
    last = ""

    def say(error: HoldfastError) -> None:
        nonlocal last
        if str(error) != last:
            (logger.warning if last else alert)(error)
            last = str(error)

    return load_assign(group.assignor, say, max(_SHORTEST, group.session_timeout.total_seconds() / 5))


def everywhere(app: AppSpec) -> list[TaskId]:
    """The tasks of the sub-topologies that have a global store."""
    numbers = {app.number_of(spec.name) for spec in app.stores if spec.everywhere}
    return [task for task in app.tasks() if task.subtopology in numbers]


def needs_of(app: AppSpec, newest: Version) -> Needs:
    """The tasks of an app file. Those with a global store are needed everywhere."""
    all_over = everywhere(app)
    tasks = [Wanted(task=task, everywhere=task in all_over) for task in app.tasks()]
    return Needs(app_file=app.number, tasks=tasks, newest=newest)
