"""What an app needs of the instances that host its stores.

The app talks to instances through this protocol only. `holdfast.embedded` implements it with processes that the app
starts itself.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.states import AppState
from holdfast.words import TaskId, Version


class InstanceFailed(HoldfastError):
    """An instance does not start, or dies again and again."""

    category = ErrorCategory.INVALID


class Interrupted(HoldfastError):
    """The app was told to stop, so the work under way was given up."""

    category = ErrorCategory.CLOSED


class Instances(Protocol):
    """All instances of one app."""

    @property
    def rest_address(self) -> str | None:
        """Where queries are answered; every instance answers for all."""

    def assign(self, tasks: Sequence[TaskId], everywhere: Collection[TaskId]) -> None:
        """Decides which instance hosts which task, and tells each one its tasks and where the others are.

        Instances that don't run yet are started.
        Every task has one active replica. Tasks in `everywhere` have a standby on each of the other instances too.
        """

    def replicas(self) -> Mapping[str, tuple[str, ...]]:
        """Task → the addresses of the instances that host it, the active replica first."""

    def wait_until_ready(self, version: Version) -> None:
        """Returns when every task is restored to `version` and every store was read once.

        Raises what prevents a task from being restored once it was tried often enough, and Interrupted when the app is
        told to stop meanwhile.
        """

    def committed(self, version: Version) -> None:
        """Tells every instance that a version exists, without waiting for an answer."""

    def set_app_state(self, state: AppState, cause: BaseException | None) -> None:
        """Tells every instance what `GET /v1/state` should say."""

    def stop(self) -> None:
        """Ends the instances that were started. Safe to call twice, and after a start that failed."""
