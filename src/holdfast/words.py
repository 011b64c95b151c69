"""Types that every layer uses: versions, tasks and times."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType

from holdfast.errors import ErrorCategory, HoldfastError

Version = NewType("Version", int)
"""The number of a committed step of the app. The first one is 1."""

NOTHING = Version(0)
"""The version before the first: an empty app."""

Millis = NewType("Millis", int)
"""Milliseconds since 1970 in UTC."""


class BadTaskName(HoldfastError):
    category = ErrorCategory.INVALID


@dataclass(frozen=True, order=True, slots=True)
class TaskId:
    """One partition of one sub-topology, written `0_3`.

    >>> str(TaskId(0, 3)), TaskId.parse("0_3")
    ('0_3', TaskId(subtopology=0, partition=3))
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return _text(self.subtopology, self.partition)

    @classmethod
    def parse(cls, text: str) -> "TaskId":
        match = re.fullmatch(r"(\d+)_(\d+)", text)
        if match is None:
            raise BadTaskName(f"{text!r} is not a task. A task is <sub-topology>_<partition>, such as 0_3.")
        return cls(int(match[1]), int(match[2]))


@lru_cache(maxsize=4096)
def _text(subtopology: int, partition: int) -> str:
    """A task's name, kept since every version and every lookup asks for some."""
    return f"{subtopology}_{partition}"
