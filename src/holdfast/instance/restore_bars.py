"""Progress bars for restores on a terminal: one per task and store that is being restored, drawn from restore events.

A bar counts versions; while a snapshot is being loaded it counts the snapshot's bytes instead. Nothing is drawn when
nothing is restored, or without a terminal.
"""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holdfast.instance.events import RestoreEvent, RestorePhase


class RestoreBars:
    """Draws restore events as they come."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("restoring {task.fields[place]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}, {task.fields[entries]:,} entries"),
            TimeElapsedColumn(),
            console=console,
            disable=console.quiet is False and not console.is_terminal,
            transient=True,
        )
        self._drawn: dict[tuple[str, str], tuple[TaskID, int]] = {}
        """The bar of each task and store, and its target version."""

    def show(self, event: RestoreEvent) -> None:
        """Draws one event."""
        key = (event.task, event.store)
        match event.phase:
            case RestorePhase.START:
                self._start(key, event)
            case RestorePhase.BATCH:
                self._move(key, event)
            case RestorePhase.END | RestorePhase.SUSPENDED:
                self._end(key)

    def close(self) -> None:
        self._bars.stop()

    def _start(self, key: tuple[str, str], event: RestoreEvent) -> None:
        self._end(key)
        if not self._drawn:
            self._bars.start()
        total = max(1, event.end_version - event.start_version)
        bar = self._bars.add_task("", total=total, place="/".join(key), unit="versions", entries=0)
        self._drawn[key] = bar, event.end_version

    def _move(self, key: tuple[str, str], event: RestoreEvent) -> None:
        if key not in self._drawn:
            return  # it started before this process listened
        bar, target = self._drawn[key]
        done, total, unit = event.bytes_done, event.bytes_total, "bytes of a snapshot"
        if not total:
            start, unit = event.start_version, "versions"
            done, total = event.end_version - start, max(1, target - start)
        self._bars.update(bar, completed=done, total=total, unit=unit, entries=event.total)

    def _end(self, key: tuple[str, str]) -> None:
        if key in self._drawn:
            self._bars.remove_task(self._drawn.pop(key)[0])
            if not self._drawn:
                self._bars.stop()
