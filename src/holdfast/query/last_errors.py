"""The last error of each store, for `/health/stores`: what made it unreadable, not what a client has asked too much."""

import msgspec

from holdfast.errors import HoldfastError
from holdfast.instance.held_versions import TooManyHolds
from holdfast.instance.read_views import VersionNotAvailable
from holdfast.query.problems import problem_of
from holdfast.query.task_reader import NotFresh
from holdfast.words import Millis


class LastError(msgspec.Struct, frozen=True):
    """The last error of a store, kept after the store has recovered: people usually look after the failure."""

    message: str
    at: Millis


def is_of_the_store(error: HoldfastError) -> bool:
    """Whether an error of a read says that the store can't be read, and not that it can't be read as demanded.

    >>> from holdfast.query.task_reader import NotReady, VersionGone
    >>> is_of_the_store(NotReady("Task 0_1 restores.")), is_of_the_store(VersionGone(1, 5, 9))
    (True, False)
    """
    if isinstance(error, VersionNotAvailable):
        return error.asked is None
    return problem_of(error).status >= 500 and not isinstance(error, NotFresh | TooManyHolds)
