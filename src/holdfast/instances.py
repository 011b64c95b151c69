"""What an app needs of the instances that host its stores.

The app talks to instances through this protocol only. `holdfast.embedded` implements it with processes that the app
starts itself.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.config import Role
from holdfast.instance.credentials import Credentials
from holdfast.states import AppState
from holdfast.stores.layouts.due import Due
from holdfast.words import TaskId, Version

Assignment = Mapping[TaskId, Role]
"""The tasks that one instance hosts, each with its role."""


class InstanceFailed(HoldfastError):
    """An instance does not start, or dies again and again."""

    category = ErrorCategory.INVALID


class Instances(Protocol):
    """All instances of one app."""

    @property
    def credentials(self) -> Credentials:
        """What tasks show to the instances."""

    @property
    def rest_addresses(self) -> tuple[str, ...]:
        """The address for queries of each instance. Every one of them answers queries for all tasks."""

    def assign(self, tasks: Sequence[TaskId], everywhere: Collection[TaskId]) -> None:
        """Decides which instance hosts which task, starts missing instances, and sends each its tasks and its peers.

        Every task has one active replica, and as many standbys as the settings say, each on another instance. Tasks in
        `everywhere` have a standby on each of the other instances.
        """

    def replicas(self) -> Mapping[str, tuple[str, ...]]:
        """Task → the addresses of the instances that host it, the active replica first."""

    def wait_until_ready(self, version: Version) -> None:
        """Returns when every task is restored to `version` and every store was read once.

        Raises InstanceFailed for a task that can't be restored after several attempts, and Interrupted when the app is
        told to stop.
        """

    def wait_until_visible(self, version: Version) -> None:
        """Returns when queries see `version`, whichever instance answers them.

        An instance that doesn't answer isn't waited for if others have all of its tasks at that version.
        """

    def committed(self, version: Version) -> None:
        """Tells every instance that a version exists, without waiting for an answer."""

    def due(self, version: Version) -> Mapping[str, Due]:
        """By store, what is due next at a version. Raises InstanceUnavailable while an instance can't answer."""

    def set_app_state(self, state: AppState, cause: BaseException | None) -> None:
        """Tells every instance the state that `GET /v1/state` returns."""

    def stop(self, seconds: float) -> None:
        """Ends the instances that were started, within this time. Safe to call twice, and after a failed start."""


def assignments(
    tasks: Sequence[TaskId], everywhere: Collection[TaskId], instances: int, standbys: int = 0
) -> list[Assignment]:
    """The tasks per instance, distributed in turn. The standbys of a task are on the instances that follow.

    Tasks in `everywhere` have a standby on all other instances.

    >>> found = assignments([TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)], [TaskId(1, 0)], 3, standbys=1)
    >>> for assignment in found:
    ...     print({str(task): str(role) for task, role in assignment.items()})
    {'0_0': 'active', '1_0': 'standby'}
    {'0_0': 'standby', '0_1': 'active', '1_0': 'standby'}
    {'0_1': 'standby', '1_0': 'active'}
    """
    found: list[dict[TaskId, Role]] = [{} for _ in range(instances)]
    for number, task in enumerate(tasks):
        copies = instances - 1 if task in everywhere else min(standbys, instances - 1)
        for step in range(copies + 1):
            found[(number + step) % instances][task] = Role.STANDBY if step else Role.ACTIVE
    return [assignment for assignment in found if assignment]
