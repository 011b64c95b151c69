"""The `holdfast` command.

An error of Holdfast is one line on stderr that says what to do, and exit code 1. Commands import their modules when
they run, so that no command waits for the imports of another.
"""

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdfast import query_command
from holdfast.errors import HoldfastError, SettingsError, TopologyError
from holdfast.operating_command import commands
from holdfast.settings.load import load
from holdfast.settings.units import parse_bytes, parse_duration, parse_number, parse_whole, shown_size

app = typer.Typer(
    name="holdfast",
    help="Named, typed, durable state stores for PySpark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _holdfast(
    show_version: Annotated[bool, typer.Option("--version", help="Print the release of Holdfast.")] = False,
) -> None:
    if show_version:
        print(version("holdfast"))
        raise typer.Exit


@app.command()
def config(
    file: Annotated[
        Path | None,
        typer.Option(help="A TOML file. Without it, HOLDFAST_CONFIG or ./holdfast.toml is read.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Print every setting from the file and the environment, and where its value comes from."""
    rows = load(file=file, env=os.environ).rows()
    if as_json:
        print(json.dumps({name: {"value": value, "from": origin} for name, value, origin in rows}, indent=2))
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for name, value, origin in rows:
        changed = origin != "default"
        table.add_row(name, value or "-", origin, style="bold" if changed else "")
    # A pipe has no width, and wrapped values can't be searched.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def _number(parse: Callable[[str], float], help: str) -> Any:
    """An option whose value is read by `parse`."""

    def read(given: object) -> float:
        try:
            return parse(str(given))  # a default is already a number
        except SettingsError as error:
            raise typer.BadParameter(str(error)) from None

    return typer.Option(parser=read, metavar="NUMBER", help=help)


@app.command()
def size(
    keys: Annotated[float, _number(parse_number, "Keys per store, in all partitions, such as 5M or 5e6.")],
    value_bytes: Annotated[int, _number(parse_bytes, "Bytes per encoded value, such as 200 or 1KiB.")],
    key_bytes: Annotated[int, _number(parse_bytes, "Bytes per key.")] = 16,
    partitions: Annotated[
        int,
        _number(parse_whole, "Partitions of the app, for open files. In Holdfast they share one memory limit."),
    ] = 4,
    stores: Annotated[int, _number(parse_whole, "Number of stores of that size.")] = 1,
    standbys: Annotated[int, _number(parse_whole, "Replicas per task in addition to the active one.")] = 0,
    instances: Annotated[int, _number(parse_whole, "Number of instances; 0: one per replica of a task.")] = 0,
    retention: Annotated[str, typer.Option(help="How long the log is kept, and the time span for the growth.")] = "1d",
    growth: Annotated[str, typer.Option(help="Growth of the number of keys, such as 2%/d.")] = "0%/d",
    changes: Annotated[float, _number(parse_number, "Changes per key and day.")] = 1.0,
    compressed: Annotated[
        float, typer.Option(help="Compressed size of a value as a fraction; 1 means no compression.")
    ] = 1.0,
    hot: Annotated[float, typer.Option(help="The fraction of the data that should fit into the caches.")] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Print how much memory, disk and log an app needs, with the formulas."""
    from holdfast.sizing import OPEN_FILES, Load, estimate, kafka_streams_rule, parse_growth

    found = estimate(
        Load(
            keys=keys,
            value_bytes=value_bytes,
            key_bytes=key_bytes,
            partitions=partitions,
            stores=stores,
            standbys=standbys,
            instances=instances,
            retention=parse_duration(retention),
            growth_per_day=parse_growth(growth),
            changes_per_day=changes,
            compressed=compressed,
            hot=hot,
        )
    )
    if as_json:
        lines = {line.what: {"bytes": round(line.bytes), "formula": line.formula} for line in found.lines()}
        print(json.dumps({**lines, OPEN_FILES: {"files": found.files, "formula": found.files_formula}}))
        return
    table = Table("what", "size", "formula", box=None, pad_edge=False)
    table.add_row("entries", f"{found.entries:,.0f}", "keys x stores x growth", style="dim")
    for line in found.lines():
        table.add_row(line.what, shown_size(line.bytes), line.formula)
    table.add_row(OPEN_FILES, f"{found.files:,}", found.files_formula)
    rule = kafka_streams_rule(partitions, stores)
    table.add_row(
        "for comparison: Kafka Streams",
        shown_size(rule),
        f"{partitions} partitions x {stores} stores x (3 write buffers x 64 MiB + 16 MiB of cache), in memory",
        style="dim",
    )
    Console(width=None if sys.stdout.isatty() else 240, highlight=False).print(table)


@app.command()
def plan(
    place: Annotated[
        str, typer.Argument(help="Where the app is: module:name of an hf.App, or of a function that returns one.")
    ],
) -> None:
    """Print what a start of an app would change in its log, without changing anything. Exit code 1: it is refused."""
    from holdfast.app import App
    from holdfast.planned import only_planned
    from holdfast.stores.places import object_at

    sys.path.insert(0, str(Path.cwd()))
    with only_planned():
        found = object_at(
            place, "holdfast plan", "Run the command in the folder of the module, or put that folder on PYTHONPATH."
        )
        made = found() if callable(found) else found
    if not isinstance(made, App):
        raise TopologyError(
            f"holdfast plan: {place!r} is a {type(made).__name__} and not an hf.App. Name the variable or the function "
            "that has the app."
        )
    planned = made.plan()
    print(planned)
    if planned.refusals:
        raise typer.Exit(1)


_ANY_PORT = "127.0.0.1:0"


@app.command()
def instance(
    app_id: Annotated[str | None, typer.Option("--app", help="The id of the app, also HOLDFAST_APP.")] = None,
    log: Annotated[
        str | None,
        typer.Option(help="The address of the app's log. Without it, HOLDFAST_LOG or log.url.", show_default=False),
    ] = None,
    id: Annotated[
        str | None, typer.Option(help="The id of this instance. Without it, the host's name.", show_default=False)
    ] = None,
    tags: Annotated[str, typer.Option(help="Where it is, for group.spread_by: rack=a,zone=b.")] = "",
    bind: Annotated[str, typer.Option(help="HOST:PORT to listen on, for tasks and other instances.")] = _ANY_PORT,
    advertise: Annotated[
        str | None,
        typer.Option(help="HOST:PORT, or HOST, by which others reach it, if that isn't --bind.", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A TOML file with the app's settings.", show_default=False)] = None,
) -> None:
    """Host stores of an app and answer queries, as a server that joins the app's group through its log.

    An app with the setting instances = "external" uses such servers. SIGTERM hands the tasks over and ends it. Without
    --app, the configuration is one line of JSON on stdin: this is how `app.run()` starts its own instances.
    """
    from holdfast.group_command import APP
    from holdfast.instance_command import host, host_as_server, without_app

    app_id = app_id or os.environ.get(APP)
    if app_id is None:
        if any((log, id, tags, advertise, file)) or bind != _ANY_PORT:
            raise without_app()
        host()
    else:
        host_as_server(app_id, load(file=file, env=os.environ).settings, log, id, tags, bind, advertise)


query_command.add_to(app)
app.add_typer(commands, name="group")

checkpoint = typer.Typer(help="Spark's checkpoint of an app.", no_args_is_help=True)
app.add_typer(checkpoint, name="checkpoint")


@checkpoint.command("repair")
def repair_checkpoint(
    app_id: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="The id of the app, which must not be running.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A TOML file with the app's settings.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
) -> None:
    """Set Spark's checkpoint to the position that the app's log has recorded.

    For a checkpoint whose newest entries are lost or damaged, that was set back, is ahead of the log, or is gone.
    """
    from holdfast.group_command import app_or_default
    from holdfast.log.log import Log
    from holdfast.log.storage import open_storage
    from holdfast.pipeline.checkpoint_repair import repair
    from holdfast.pipeline.offsets import Checkpoint
    from holdfast.pipeline.spark import session_of

    settings = load(file=file, env=os.environ).settings
    app_id = app_or_default(app_id, settings)
    settings = settings.absolute()
    url, options = settings.log_url(app_id), settings.log.options
    log = Log.open(open_storage(url, options, fsync=settings.log.fsync, retry=settings.retry))
    session = session_of("holdfast checkpoint repair", settings.spark)
    place = settings.checkpoint(app_id)
    done = repair(Checkpoint(session, place), log.newest(), dry_run=dry_run)
    print("\n".join(done) if done else f"{place} is at the log's position. Nothing to do.")


@app.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Stop after this many seconds. Without it, stop with Ctrl-C.", show_default=False),
    ] = None,
) -> None:
    """Show the scores of a video game live: a generated stream, Spark, a store and its REST address."""
    from holdfast.demo import run

    run(seconds)


def main() -> None:
    """The entry point of the `holdfast` script."""
    try:
        app()
    except HoldfastError as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(f"holdfast: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
