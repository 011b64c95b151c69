"""Progress bars for restores on a terminal: one per replica and store that is being restored, drawn from its events.

A bar counts versions; while a snapshot is being loaded it counts the snapshot's bytes instead, with those that were on
disk already. Nothing is drawn when nothing is restored, or without a terminal.
"""

import threading

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holdfast.instance.events import RestoreEvent, RestorePhase

_Key = tuple[str, str, str]
"""The instance, the task and the store."""


class RestoreBars:
    """Draws restore events as they come, from any thread."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("restoring {task.fields[place]}"),
            BarColumn(),
            TextColumn("{task.fields[progress]}, {task.fields[entries]:,} entries"),
            TimeElapsedColumn(),
            console=console,
            disable=console.quiet is False and not console.is_terminal,
            transient=True,
        )
        self._drawing = threading.Lock()
        self._drawn: dict[_Key, tuple[TaskID, int]] = {}
        """The bar of each store of a replica, and its target version."""

    def show(self, event: RestoreEvent) -> None:
        """Draws one event."""
        key = (event.instance, event.task, event.store)
        with self._drawing:
            match event.phase:
                case RestorePhase.START:
                    self._start(key, event)
                case RestorePhase.BATCH:
                    self._move(key, event)
                case RestorePhase.END | RestorePhase.SUSPENDED:
                    self._end(key)

    def close(self) -> None:
        self._bars.stop()

    def _start(self, key: _Key, event: RestoreEvent) -> None:
        self._end(key)
        if not self._drawn:
            self._bars.start()
        total = max(1, event.end_version - event.start_version)
        progress = f"0/{total} versions"
        bar = self._bars.add_task("", total=total, place="/".join(filter(None, key)), progress=progress, entries=0)
        self._drawn[key] = bar, event.end_version

    def _move(self, key: _Key, event: RestoreEvent) -> None:
        if key not in self._drawn:
            return  # it started before this process listened
        bar, target = self._drawn[key]
        done, total = event.bytes_done, event.bytes_total
        if total:
            here, of, kept = map(decimal, (done, total, event.bytes_kept))
            progress = f"{here} of {of} of a snapshot" + (f" ({kept} were on disk)" if event.bytes_kept else "")
        else:
            done, total = event.end_version - event.start_version, max(1, target - event.start_version)
            progress = f"{done}/{total} versions"
        self._bars.update(bar, completed=done, total=total, progress=progress, entries=event.total)

    def _end(self, key: _Key) -> None:
        if key in self._drawn:
            self._bars.remove_task(self._drawn.pop(key)[0])
            if not self._drawn:
                self._bars.stop()
