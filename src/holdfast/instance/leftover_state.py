"""Folders of tasks that an instance no longer hosts: they are kept for a while, since a task may come back.

As long as one is there, the heartbeat of the instance names it, so that the assignor prefers this instance.
"""

import contextlib
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.instance.state_dir import TaskDirectory, remove
from holdfast.words import BadTaskName, TaskId, Version

_LOG = logging.getLogger(__name__)


class LeftoverState:
    """The folders of one instance. A folder is deleted when it wasn't hosted for `keep` seconds of this process."""

    def __init__(self, folder: Path, instance: str, keep: float) -> None:
        self._folder = folder
        self._instance = instance
        self._keep = keep
        self._found: dict[TaskId, tuple[float, Version]] = {}
        """When a folder was first seen without its task, and the version of its state."""

    def look(self, now: float, hosted: Collection[TaskId]) -> None:
        """Deletes what was there for long enough."""
        tasks = set(self._tasks()) - set(hosted)
        self._found = {task: found for task, found in self._found.items() if task in tasks}
        for task in tasks - self._found.keys():
            self._found[task] = now, self._version(task)
        for task, (since, _) in list(self._found.items()):
            if now - since >= self._keep:
                self._delete(task)

    def versions(self) -> Mapping[TaskId, Version]:
        """The versions of the state in these folders."""
        return {task: version for task, (_, version) in self._found.items()}

    def _tasks(self) -> list[TaskId]:
        found = []
        with contextlib.suppress(OSError):  # it isn't there yet, or can't be read now
            for path in self._folder.iterdir():
                with contextlib.suppress(BadTaskName):
                    found.append(TaskId.parse(path.name))
        return found

    def _version(self, task: TaskId) -> Version:
        try:
            with TaskDirectory(self._folder, task, self._instance) as home:
                checkpoint = home.read_checkpoint()
        except HoldfastError as error:
            _LOG.debug("the state of task %s can't be used: %s", task, error)
            return Version(0)
        return Version(0 if checkpoint is None else min(checkpoint.stores.values(), default=0))

    def _delete(self, task: TaskId) -> None:
        try:
            with TaskDirectory(self._folder, task, self._instance) as home:
                remove(home.path)
        except (HoldfastError, OSError) as error:
            _LOG.warning("the state of task %s, which isn't hosted here, can't be deleted: %s", task, error)
            return
        _LOG.info("the state of task %s was deleted: it wasn't hosted here for %g s", task, self._keep)
        del self._found[task]
