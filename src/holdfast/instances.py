"""What an app needs of the instances that host its stores.

The app talks to instances through this protocol only; `holdfast.group_instances` implements it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.credentials import Credentials
from holdfast.log.commits import Point
from holdfast.states import AppState
from holdfast.stores.layouts.due import Due
from holdfast.words import TaskId, Version


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
        """Says which tasks there are, and starts instances if the app has its own.

        Every task gets one active replica, and as many standbys as the settings say, each on another instance. Tasks in
        `everywhere` get a standby on each of the other instances.
        """

    def replicas(self) -> Mapping[str, tuple[str, ...]]:
        """Task → the addresses of the instances that host it, the active one first, those that don't answer last."""

    def wait_until_ready(self, newest: Point) -> None:
        """Returns when a replica of every task is restored to the newest version and every store of it was read once.

        One on a timeline that is abandoned isn't: instances are told what the newest commit is.
        Raises InstanceFailed for a task that can't be restored after several attempts, and Interrupted when the app is
        told to stop.
        """

    def wait_until_visible(self, version: Version) -> None:
        """Returns when queries see `version`, whichever instance answers them.

        An instance that doesn't answer isn't waited for if others have all of its tasks at that version.
        """

    def committed(self, newest: Point) -> None:
        """Tells every instance that a version exists, without waiting for an answer."""

    def due(self, version: Version) -> Mapping[str, Due]:
        """By store, what is due next at a version. Raises InstanceUnavailable while no replica of a task can answer."""

    def set_app_state(self, state: AppState, cause: BaseException | None, driver_metrics: str | None) -> None:
        """Tells every instance what `GET /v1/state` returns: the state, and the address of the driver's metrics."""

    def stop(self, seconds: float) -> None:
        """Ends the instances that were started, within this time. Safe to call twice, and after a failed start."""
