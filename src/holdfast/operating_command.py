"""`holdfast group pause`, `resume` and `drain`: what an operator asks of an app, as objects in its log.

The driver and the members find them there. So a command needs only the log, and works also while nothing runs.
"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import ErrorCategory, HoldfastError, did_you_mean
from holdfast.group_command import AppOption, FileOption, LogOption, Target, group

if TYPE_CHECKING:
    from holdfast.log.log import Log

commands = group
"""`holdfast group` with what is added here."""
_LOOK_SECONDS = 0.2
_INTERVAL = 2.0

Note = Annotated[str, typer.Option(help="Why, for those who look at the group.", show_default=False)]


class NobodyTakesOver(HoldfastError):
    """No other instance could host the tasks of one that is drained."""

    category = ErrorCategory.INVALID


class UnknownMember(HoldfastError):
    """An instance that isn't in the group."""

    category = ErrorCategory.INVALID


@group.command("pause")
def pause(
    context: typer.Context,
    app: AppOption = None,
    log: LogOption = None,
    file: FileOption = None,
    note: Note = "",
) -> None:
    """Have an app start no batch any more. The one under way finishes, and queries go on."""
    from holdfast.log import operator_requests

    opened, _ = Target(app, log, file).with_outer(context).opened()
    request, before = operator_requests.pause(opened.storage, opened.id, note)
    if before is not None:
        typer.echo(f"{opened.app.id} was paused already {before}.")
    if request is not before:
        typer.echo(f"{opened.app.id} is paused {request}. Its driver follows within a second, also after a restart.")
    typer.echo(f"To go on: holdfast group resume --app {opened.app.id} --log {opened.storage.place}")


@group.command("resume")
def resume(context: typer.Context, app: AppOption = None, log: LogOption = None, file: FileOption = None) -> None:
    """Have a paused app go on where it was."""
    from holdfast.log import names, operator_requests

    opened, _ = Target(app, log, file).with_outer(context).opened()
    was = opened.storage.exists(names.PAUSE)
    operator_requests.withdraw(opened.storage, names.PAUSE)
    typer.echo(f"{opened.app.id} goes on." if was else f"{opened.app.id} wasn't paused.")


@group.command("drain")
def drain(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of an instance.")],
    app: AppOption = None,
    log: LogOption = None,
    file: FileOption = None,
    note: Note = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let the instance host tasks again.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Don't wait until it hosts no task.")] = False,
) -> None:
    """Hand the tasks of an instance over to others. It goes on running, and gets no new ones."""
    from holdfast.log import names, operator_requests

    opened, _ = Target(app, log, file).with_outer(context).opened()
    if undo:
        _check_known(opened, id)
        operator_requests.withdraw(opened.storage, names.drain(id))
        typer.echo(f"{id} may host tasks again.")
        return
    _check_known(opened, id)
    operator_requests.ask(opened.storage, names.drain(id), opened.id, note)
    again = f"holdfast group drain {id} --undo --app {opened.app.id} --log {opened.storage.place}"
    if no_wait:
        typer.echo(f"{id} hands its tasks over. To have it host tasks again: {again}")
        return
    try:
        wait_until_empty(opened, id)
    except KeyboardInterrupt:
        typer.echo(f"{id} goes on handing its tasks over. To have it host tasks again: {again}")
        return
    typer.echo(f"{id} hosts no task and can be stopped. To have it host tasks again: {again}")
    if (lonely := _without_standby(opened)) is not None:
        typer.echo(lonely)


def _without_standby(log: "Log") -> str | None:
    """What a drain has cost: standbys that the members that are left have no room for."""
    from holdfast.group.generations import Generations

    generation = Generations(log.storage, log.id).look_again()
    if generation is None or not (wanted := generation.rules.standbys):
        return None
    count = sum(not place.standbys for place in generation.tasks.values())
    if not count:
        return None
    tasks = "1 task has" if count == 1 else f"{count} tasks have"
    return f"{tasks} no standby now: standbys = {wanted} needs {wanted + 1} instances that aren't drained. Start more."


def _check_known(log: "Log", id: str) -> None:
    from holdfast.group.members import Members

    members = Members(log.storage, log.id)
    known = {*members.read(), *members.draining}
    if id not in known:
        raise UnknownMember(
            f"No instance {id!r} has joined the group in {log.storage.place}. {did_you_mean(id, known)}"
            "`holdfast group` prints all of them."
        )


def wait_until_empty(log: "Log", id: str, console: Console | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
    """Shows how many replicas an instance still has to hand over, until there is none.

    Raises NobodyTakesOver if no other instance is there, or none of them was seen to beat.
    """
    from holdfast.group.generations import Generations
    from holdfast.group.members import Members, MemberState
    from holdfast.group.overview import Watch

    generations, members, watch = Generations(log.storage, log.id), Members(log.storage, log.id), Watch(_INTERVAL)
    began = clock.monotonic()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        shown = progress.add_task(f"replicas that {id} has handed over", total=None)
        most = 0
        while True:
            generation = generations.look_again()
            left = 0 if generation is None else len(generation.hosted_by(id))
            most = max(most, left)
            progress.update(shown, total=most, completed=most - left)
            if left == 0:
                return
            now, found = clock.monotonic(), members.read()
            watch.look(now, found)
            others = {
                other
                for other, member in found.items()
                if other not in members.draining and member.state is MemberState.JOINED
            }
            silent = now - began >= watch.patience and not any(watch.beat(other, now).alive for other in others)
            if not others or silent:
                raise NobodyTakesOver(_stuck(id, left, sorted(others)))
            clock.sleep(_LOOK_SECONDS)


def _stuck(id: str, left: int, silent: list[str]) -> str:
    why = f"{', '.join(silent)} wrote no heartbeat" if silent else "all others have left, or are drained too"
    return (
        f"{id} has {left} replicas, and no other instance could host them: {why}. Start one, and they are handed over; "
        f"or have {id} host them again, with `holdfast group drain {id} --undo`."
    )
