"""Waiting until replicas of this process are as fresh as a request demands, on the event loop."""

import asyncio
import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from holdfast.clock import Clock, pause
from holdfast.query.freshness import ANY, LATEST, Freshness, KnownVersions, is_cut_off, needs_of, not_committed
from holdfast.query.task_reader import ReadNeeds, Tasks
from holdfast.words import NOTHING, TaskId, Version

_LOOK_SECONDS: Final = 0.01


class VersionWait:
    """Waits for versions of the tasks that this process answers for."""

    def __init__(self, tasks: Tasks, versions: KnownVersions, clock: Clock) -> None:
        self._tasks = tasks
        self._versions = versions
        self._clock = clock

    async def awaited(self, freshness: Freshness, tasks: Sequence[TaskId]) -> Freshness:
        """Waits until the replicas of these tasks here are as fresh as a request demands, for as long as it may wait.

        It waits without a thread, since that may take long. The result demands the same of a read right afterwards,
        with the time that is left, and says whether that may be spent on other instances. It may if no tasks are given.
        """
        if freshness is ANY:
            return ANY
        until = self._clock.monotonic() + freshness.wait.total_seconds()
        while (newest := self._versions.newest_known) < freshness.first:
            if self._clock.monotonic() >= until:
                raise not_committed(freshness.first, newest)
            await pause(_LOOK_SECONDS)
        needs = await self._needs(freshness, until)
        version = self._newest_here(tasks) if freshness.at is LATEST else freshness.at
        for task in tasks:
            while self._is_behind(task, version, needs) and self._clock.monotonic() < until:
                await pause(_LOOK_SECONDS)
        left = dt.timedelta(seconds=max(0.0, until - self._clock.monotonic()))
        readers = [self._tasks(task, needs.to_read(version)) for task in tasks]
        elsewhere = not readers or any(reader is not None and not reader.local for reader in readers)
        return replace(freshness, at_least=needs.at_least, max_lag=None, wait=left, elsewhere=elsewhere)

    async def _needs(self, freshness: Freshness, until: float) -> ReadNeeds:
        if isinstance(lag := freshness.max_lag, dt.timedelta):
            while is_cut_off(lag, self._versions, self._clock) and self._clock.monotonic() < until:
                await pause(_LOOK_SECONDS)
            return await asyncio.to_thread(needs_of, freshness, self._versions, self._clock)  # it may read the log
        return needs_of(freshness, self._versions, self._clock)

    def _newest_here(self, tasks: Sequence[TaskId]) -> Version:
        return max(
            (each.newest for each in map(self._tasks, tasks) if each is not None and each.local), default=NOTHING
        )

    def _is_behind(self, task: TaskId, version: Version | None, needs: ReadNeeds) -> bool:
        reader = self._tasks(task, needs.to_read(version))
        return reader is not None and reader.is_behind(needs.at_least if version is None else version, needs)
