"""`holdfast group`: shows the group of an app from its log alone. It needs no app, and writes nothing to the log.

Heartbeats are looked at for a bit more than one interval, by this command's own clock: one that changed is alive.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import ErrorCategory, HoldfastError, did_you_mean
from holdfast.settings.load import LOG_VARIABLE, load
from holdfast.settings.units import parse_bytes, shown_size

if TYPE_CHECKING:
    from holdfast.group.generations import Generation
    from holdfast.group.overview import MemberRow, Overview, ReplicaRow
    from holdfast.log.log import Log
    from holdfast.settings.model import Settings

group = typer.Typer(help="The group of an app: its instances, and which of them hosts which task.")

_SHOWN = 50
"""How many replicas the table has at most: the heaviest. `--json` has all of them."""
_LOOKS_PER_INTERVAL = 10


APP, LOG = "HOLDFAST_APP", LOG_VARIABLE
"""Where a command finds the app and its log, if no option says so."""


class AppMissing(HoldfastError):
    """A command doesn't know which app it is about."""

    category = ErrorCategory.INVALID


class UnknownTask(HoldfastError):
    """A task that the newest generation doesn't have."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True)
class Target:
    """Which group a command is about. Options before a subcommand count for it too."""

    app: str | None
    log: str | None
    file: Path | None

    def with_outer(self, context: typer.Context) -> "Target":
        """With the options that were given before the subcommand."""
        outer: Target = context.obj
        return Target(self.app or outer.app, self.log or outer.log, self.file or outer.file)

    def opened(self) -> "tuple[Log, Settings]":
        """The log of the app, and the settings it was found by."""
        settings = load(file=self.file, env=os.environ).settings
        if self.log is not None:
            settings = replace(settings, log=replace(settings.log, url=self.log))
            if not (self.app or os.environ.get(APP)):
                return _open(None, self.log, settings.log.options), settings
        app = app_or_default(self.app, settings)
        return _open(app, settings.log_url(app), settings.log.options), settings

    def is_known(self) -> bool:
        """Whether an option, the environment or the folder says which app it is."""
        if self.app or self.log or os.environ.get(APP) or os.environ.get(LOG):
            return True
        return len(apps_in(load(file=self.file, env=os.environ).settings)) == 1


def apps_in(settings: "Settings") -> list[str]:
    """The ids of the apps whose logs are in the folder of the settings."""
    return sorted(each.parent.name for each in Path(settings.base_dir).glob("*/log") if each.is_dir())


def app_or_default(given: str | None, settings: "Settings") -> str:
    """The id of the app that a command is about: the given one, that of the environment, or the only one here."""
    if found := given or os.environ.get(APP):
        return found
    here = apps_in(settings)
    if len(here) == 1:
        return here[0]
    has = f"{settings.base_dir} has the apps {', '.join(here)}" if here else f"{settings.base_dir} has no app"
    raise AppMissing(f"Which app? {has}. Write --app ID or set {APP}, or run the command in the folder of the app.")


AppOption = Annotated[
    str | None,
    typer.Option("--app", metavar="ID", help=f"The id of the app. Without it: {APP}, or the only one in this folder."),
]
LogOption = Annotated[
    str | None,
    typer.Option("--log", metavar="URL", help=f"Its log: a folder or URL. Without it: {LOG}, then the settings."),
]
FileOption = Annotated[
    Path | None,
    typer.Option(help="A TOML file with the app's settings, such as options of the storage.", show_default=False),
]


@group.callback(invoke_without_command=True)
def show_group(
    context: typer.Context,
    app: AppOption = None,
    log: LogOption = None,
    file: FileOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep looking, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    warn_above: Annotated[str, typer.Option(help="The size of a state that should have a standby.")] = "1GiB",
    restore_rate: Annotated[str, typer.Option(help="Bytes per second that a restore is expected to take.")] = "50MiB",
) -> None:
    """Print members, tasks, roles, versions, lag, size and load, from the log alone."""
    context.obj = Target(app, log, file)
    if context.invoked_subcommand is not None:
        return
    reader = GroupReader(context.obj, large=parse_bytes(warn_above), restore_rate=parse_bytes(restore_rate))
    if watch:
        keep_looking(reader)
        return
    found = reader.look_for_one_interval()
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
    else:
        _console().print(_rendered(found, reader.place))


@group.command("explain")
def explain(
    context: typer.Context,
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="One task, such as 0_3.")] = None,
    app: AppOption = None,
    log: LogOption = None,
    file: FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print why each task is where it is: what the assignor said when it placed it, and what is there now."""
    found = GroupReader(Target(app, log, file).with_outer(context)).look_for_one_interval()
    generation = found.generation
    why = {} if generation is None else _reasons(generation)
    if task is not None and task not in why:
        raise UnknownTask(
            f"The newest generation has no task {task!r}. {did_you_mean(task, why)}`holdfast group explain` without a "
            "task prints all of them."
        )
    chosen = why if task is None else {task: why[task]}
    now = {name: _now(name, found.replicas) for name in chosen}
    if as_json:
        typer.echo(json.dumps({name: {"why": chosen[name], "now": now[name]} for name in chosen}, indent=2))
    elif generation is None:
        typer.echo(_NO_GENERATION)
    else:
        typer.echo(f"generation {generation.number}, by {_clean(generation.proposer)}: {_clean(generation.reason)}")
        for name, sentence in chosen.items():
            typer.echo(f"{name}  {_clean(sentence)}\n     now: {_clean(now[name])}")


_NO_GENERATION = "No generation yet: no task has a place. The driver of the app makes the first one."
_NO_MEMBERS = "No members yet: no instance has written a heartbeat to this log. Start the app, or `holdfast instance`."


def _reasons(generation: "Generation") -> dict[str, str]:
    from holdfast.words import TaskId

    ordered = sorted(generation.tasks, key=TaskId.parse)
    return {task: generation.why.get(task, "no reason was recorded") for task in ordered}


def _now(task: str, replicas: "Sequence[ReplicaRow]") -> str:
    """What is there of a task, by the newest heartbeats: a generation may be old, and nothing has to move since."""
    parts = []
    for row in replicas:
        if row.task == task:
            how_far = "" if row.version is None else f" at version {row.version}"
            behind = f", {row.lag} behind" if row.lag else ""
            parts.append(f"{row.role} on {row.member}: {row.state}{how_far}{behind}")
    return "; ".join(parts)


class GroupReader:
    """Reads what there is to know about a group, and remembers which heartbeats it saw changing."""

    def __init__(self, target: Target, *, large: int = 1, restore_rate: int = 1, clock: Clock = SYSTEM_CLOCK) -> None:
        from holdfast.group.generations import Generations
        from holdfast.group.members import Members
        from holdfast.group.overview import Watch

        self._log, settings = target.opened()
        self.place = self._log.storage.place
        self._interval = settings.group.heartbeat_interval.total_seconds()
        self._large, self._restore_rate, self._clock = large, restore_rate, clock
        self._members = Members(self._log.storage, self._log.id)
        self._generations = Generations(self._log.storage, self._log.id)
        self._watch = Watch(self._interval)

    def generation(self) -> "Generation | None":
        return self._generations.look_again()

    def look(self) -> "tuple[Overview, bool]":
        """What there is now, and whether every member was seen to be alive."""
        from holdfast.group.overview import overview
        from holdfast.words import NOTHING, Version

        members = self._members.read()
        now = self._clock.monotonic()
        self._watch.look(now, members)
        beats = {id: self._watch.beat(id, now) for id in members}
        newest = self._log.newest()
        version = NOTHING if newest is None else Version(newest.version)
        found = overview(
            members,
            beats,
            self.generation(),
            version,
            large=self._large,
            restore_rate=self._restore_rate,
            draining=self._members.draining,
        )
        return replace(found, paused=self._pause()), self._watch.is_alive(members)

    def _pause(self) -> str | None:
        from holdfast.log.operator_requests import pause_of

        try:
            found = pause_of(self._log.storage, self._log.id)
        except HoldfastError as error:
            return f"it isn't known by whom: {error}"
        return None if found is None else str(found)

    def look_for_one_interval(self) -> "Overview":
        """Looks until every member has changed its heartbeat, or should have."""
        found, all_alive = self.look()
        end = self._clock.monotonic() + self._watch.patience
        while not all_alive and self._clock.monotonic() < end:
            self.pause()
            found, all_alive = self.look()
        return found

    def pause(self) -> None:
        self._clock.sleep(self._interval / _LOOKS_PER_INTERVAL)


def _open(app: str | None, url: str, options: Mapping[str, str]) -> "Log":
    from holdfast.log.identity import OtherApp
    from holdfast.log.log import Log
    from holdfast.log.storage import open_storage

    log = Log.open(open_storage(url, options))
    if app is not None and log.app.id != app:
        raise OtherApp(
            f"The log at {log.storage.place} belongs to the app {log.app.id!r}, and --app says {app!r}. Correct one of "
            "--app and --log."
        )
    return log


def keep_looking(reader: GroupReader) -> None:
    """Shows the group live, until Ctrl-C. To a file, a pipe or a terminal that can't move its cursor, prints its tables
    again whenever they have changed."""
    from holdfast.group.overview import without_ages

    console = _console()
    can_redraw = console.is_terminal and not console.is_dumb_terminal
    with Live(console=console, auto_refresh=False) if can_redraw else nullcontext() as live:
        printed: Overview | None = None
        try:
            while True:
                found = reader.look()[0]
                if live is not None:
                    live.update(_rendered(found, reader.place), refresh=True)
                elif (now := without_ages(found)) != printed:
                    console.print(_rendered(found, reader.place))
                    printed = now
                reader.pause()
        except KeyboardInterrupt:
            return


def _console() -> Console:
    # A pipe has no width, and wrapped values can't be searched.
    return Console(width=None if sys.stdout.isatty() else 1000, highlight=False)


def _clean(text: object) -> str:
    """A text from the log, without characters that a terminal would obey: anyone may have written it."""
    return "".join(char if char.isprintable() else "?" for char in str(text))


def _rendered(found: "Overview", place: str) -> RenderableType:
    parts: list[RenderableType] = [_headline(found, place)]
    parts.append(_members(found.members) if found.members else Text(_NO_MEMBERS))
    if found.generation is None:
        parts.append(Text(_NO_GENERATION))
    else:
        parts += [_replicas(found.replicas), *_skew_lines(found)]
    parts += [Text(f"warning: {_clean(warning)}", style="bold yellow") for warning in found.warnings]
    return Group(*parts)


def _headline(found: "Overview", place: str) -> Text:
    line = f"{place} at version {found.newest}"
    if found.generation is not None:
        line += f", generation {found.generation.number} by {_clean(found.generation.proposer)}"
        line += f" ({_clean(found.generation.reason)})"
    if found.paused is not None:
        line += f"\npaused {_clean(found.paused)}"
    return Text(line)


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False)


def _add(table: Table, *cells: object, style: str = "") -> None:
    table.add_row(*(Text(_clean(cell)) for cell in cells), style=style)


def _rate(load: float | None) -> str:
    return "-" if load is None else f"{load:,.0f}"


def _members(rows: "Sequence[MemberRow]") -> Table:
    columns = "member", "state", "heartbeat", "active", "standby", "warming", "size", "reads/s", "tags"
    table = _table(*columns, "address", "REST")
    for row in rows:
        counts = row.active, row.standby, row.warming
        style = "" if row.state == "joined" else "yellow"
        measured = shown_size(row.bytes), _rate(row.load)
        where = row.tags or "-", row.address, row.rest or "-"
        _add(table, row.id, row.state, row.beat, *counts, *measured, *where, style=style)
    return table


def _replicas(rows: "Sequence[ReplicaRow]") -> RenderableType:
    table = _table("task", "role", "member", "state", "version", "lag", "size", "reads/s")
    heaviest = sorted(rows, key=lambda row: (-row.bytes, -(row.load or 0.0)))[:_SHOWN]
    chosen = rows if len(rows) <= _SHOWN else heaviest
    for row in chosen:
        version, lag = ("-", "-") if row.version is None else (str(row.version), str(row.lag))
        style = "" if row.state == "running" else "yellow"
        cells = row.task, row.role, row.member, row.state, version, lag, shown_size(row.bytes), _rate(row.load)
        _add(table, *cells, style=style)
    if len(chosen) == len(rows):
        return table
    return Group(table, Text(f"and {len(rows) - len(chosen)} smaller replicas; --json has all of them", style="dim"))


def _skew_lines(found: "Overview") -> list[Text]:
    lines = []
    for skew in found.skews:
        shown = shown_size if skew.of == "size" else "{:,.0f} reads/s".format
        line = f"{skew.of} skew {skew.ratio:.2f}: {skew.member} has {shown(skew.most)}, the mean is {shown(skew.mean)}"
        if skew.tasks:
            line += f"; its heaviest tasks: {', '.join(skew.tasks)}"
        lines.append(Text(_clean(line)))
    return lines


def _as_json(found: "Overview") -> dict[str, object]:
    generation = found.generation
    return {
        "version": found.newest,
        "paused": found.paused,
        "generation": None
        if generation is None
        else {"number": generation.number, "proposer": generation.proposer, "reason": generation.reason},
        "members": [asdict(row) for row in found.members],
        "replicas": [asdict(row) for row in found.replicas],
        "skew": {skew.of: {**asdict(skew), "ratio": skew.ratio} for skew in found.skews},
        "warnings": list(found.warnings),
    }
