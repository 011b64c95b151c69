"""Folders of tasks that an instance no longer hosts: they are kept for a while, since a task may come back.

As long as one is there, the heartbeat of the instance names it, so that the assignor prefers this instance.

The look is part of a heartbeat, and to delete tens of gigabytes may take longer than a session. So a folder is renamed
to `.deleted-<task>-<number>`, which takes a moment, and a thread deletes what has such a name.
"""

import contextlib
import itertools
import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.instance.state_dir import TaskDirectory, remove
from holdfast.words import BadTaskName, TaskId, Version

_LOG = logging.getLogger(__name__)
_DELETED = ".deleted-"


class LeftoverState:
    """The folders of one instance. A folder is deleted when it wasn't hosted for `keep` seconds of this process."""

    def __init__(self, folder: Path, instance: str, keep: float) -> None:
        self._folder = folder
        self._instance = instance
        self._keep = keep
        self._found: dict[TaskId, tuple[float, Version]] = {}
        """When a folder was first seen without its task, and the version of its state."""
        self._deleting: threading.Thread | None = None
        self._reported: set[Path] = set()

    def look(self, now: float, hosted: Collection[TaskId]) -> None:
        """Deletes what was there for long enough."""
        tasks = set(self._tasks()) - set(hosted)
        self._found = {task: found for task, found in self._found.items() if task in tasks}
        for task in tasks - self._found.keys():
            self._found[task] = now, self._version(task)
        for task, (since, _) in list(self._found.items()):
            if now - since >= self._keep:
                self._set_aside(task)
        if self._renamed() and (self._deleting is None or not self._deleting.is_alive()):
            self._deleting = threading.Thread(target=self._delete_renamed, name="leftover-state", daemon=True)
            self._deleting.start()

    def versions(self) -> Mapping[TaskId, Version]:
        """The versions of the state in these folders."""
        return {task: version for task, (_, version) in self._found.items()}

    def _tasks(self) -> list[TaskId]:
        found = []
        for path in self._paths():
            with contextlib.suppress(BadTaskName):
                found.append(TaskId.parse(path.name))
        return found

    def _paths(self) -> list[Path]:
        try:
            return list(self._folder.iterdir())
        except OSError:
            return []  # it isn't there yet, or can't be read now

    def _renamed(self) -> list[Path]:
        """Also those that a process before had no time to delete."""
        return [path for path in self._paths() if path.name.startswith(_DELETED)]

    def _version(self, task: TaskId) -> Version:
        try:
            with TaskDirectory(self._folder, task, self._instance) as home:
                checkpoint = home.read_checkpoint()
        except HoldfastError as error:
            _LOG.debug("the state of task %s can't be used: %s", task, error)
            return Version(0)
        return Version(0 if checkpoint is None else min(checkpoint.stores.values(), default=0))

    def _set_aside(self, task: TaskId) -> None:
        names = (self._folder / f"{_DELETED}{task}-{number}" for number in itertools.count())
        try:
            with TaskDirectory(self._folder, task, self._instance) as home:
                home.path.rename(next(name for name in names if not name.exists()))
        except (HoldfastError, OSError) as error:
            _LOG.warning("the state of task %s, which isn't hosted here, can't be deleted: %s", task, error)
            return
        _LOG.info("the state of task %s is deleted: it wasn't hosted here for %g s", task, self._keep)
        del self._found[task]

    def _delete_renamed(self) -> None:
        for path in self._renamed():
            try:
                remove(path)
            except OSError as error:
                if path not in self._reported:
                    self._reported.add(path)
                    _LOG.warning("%s can't be deleted, and this is tried again: %s", path, error)
