"""Progress bars for restores on a terminal: one per task and store that is being restored, drawn from restore events.

A bar counts versions; while a snapshot is being loaded it counts the snapshot's bytes instead, with those that were on
disk already. Nothing is drawn when nothing is restored, or without a terminal.
"""

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holdfast.instance.events import RestoreEvent, RestorePhase


class RestoreBars:
    """Draws restore events as they come."""

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
        progress = f"0/{total} versions"
        bar = self._bars.add_task("", total=total, place="/".join(key), progress=progress, entries=0)
        self._drawn[key] = bar, event.end_version

    def _move(self, key: tuple[str, str], event: RestoreEvent) -> None:
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

    def _end(self, key: tuple[str, str]) -> None:
        if key in self._drawn:
            self._bars.remove_task(self._drawn.pop(key)[0])
            if not self._drawn:
                self._bars.stop()
