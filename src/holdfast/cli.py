"""The `holdfast` command: what runs, what holds and what it is set to.

An error of Holdfast's own is one line on stderr that says what to do, and exit code 1. Commands import what they run
when they run it, so that one doesn't wait for what another needs.
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

from holdfast.errors import HoldfastError, SettingsError
from holdfast.settings import load
from holdfast.settings.units import parse_bytes, parse_duration, parse_number, parse_whole

app = typer.Typer(
    name="holdfast",
    help="Named, typed, durable state stores for PySpark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _holdfast(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
) -> None:
    if show_version:
        print(version("holdfast"))
        raise typer.Exit


@app.command()
def config(
    file: Annotated[
        Path | None,
        typer.Option(help="A TOML file; without it HOLDFAST_CONFIG or ./holdfast.toml is read.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Print every setting as file and environment leave it, and where each value comes from."""
    rows = load(file=file, env=os.environ).rows()
    if as_json:
        print(json.dumps({name: {"value": value, "from": origin} for name, value, origin in rows}, indent=2))
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for name, value, origin in rows:
        changed = origin != "default"
        table.add_row(name, value or "-", origin, style="bold" if changed else "")
    # A pipe has no width of its own, and a wrapped value can't be searched for.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False).print(table)


def _number(parse: Callable[[str], float], help: str) -> Any:
    """An option that `parse` reads."""

    def read(given: object) -> float:
        try:
            return parse(str(given))  # a default is a number already
        except SettingsError as error:
            raise typer.BadParameter(str(error)) from None

    return typer.Option(parser=read, metavar="NUMBER", help=help)


@app.command()
def size(
    keys: Annotated[float, _number(parse_number, "Keys of one store, over all partitions, such as 5M or 5e6.")],
    value_bytes: Annotated[int, _number(parse_bytes, "Bytes of one value, encoded, such as 200 or 1KiB.")],
    key_bytes: Annotated[int, _number(parse_bytes, "Bytes of one key.")] = 16,
    partitions: Annotated[
        int, _number(parse_whole, "Partitions of the app, for the comparison alone: here they share one memory limit.")
    ] = 8,
    stores: Annotated[int, _number(parse_whole, "Stores of that size.")] = 1,
    standbys: Annotated[int, _number(parse_whole, "Replicas of each task beside the active one.")] = 0,
    instances: Annotated[int, _number(parse_whole, "Instances they are spread over; 0: one for each replica.")] = 0,
    retention: Annotated[str, typer.Option(help="How long the log is kept, and how far growth looks ahead.")] = "1d",
    growth: Annotated[str, typer.Option(help="How the number of keys grows, such as 2%/d.")] = "0%/d",
    changes: Annotated[float, _number(parse_number, "How often a key's value changes in a day.")] = 1.0,
    compressed: Annotated[float, typer.Option(help="What compression leaves of a value: 1 nothing gained.")] = 1.0,
    hot: Annotated[float, typer.Option(help="The part of the data that should be in memory.")] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Print how much memory, disk and log an app needs, with the formula of each."""
    from holdfast.sizing import Load, estimate, kafka_streams_rule, parse_growth, shown

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
            growth_a_day=parse_growth(growth),
            changes_a_day=changes,
            compressed=compressed,
            hot=hot,
        )
    )
    if as_json:
        print(json.dumps({line.what: {"bytes": round(line.bytes), "formula": line.formula} for line in found.lines()}))
        return
    table = Table("what", "size", "formula", box=None, pad_edge=False)
    table.add_row("entries", f"{found.entries:,.0f}", "keys x stores x growth", style="dim")
    for line in found.lines():
        table.add_row(line.what, shown(line.bytes), line.formula)
    rule = kafka_streams_rule(partitions, stores)
    table.add_row(
        "for comparison: Kafka Streams",
        shown(rule),
        f"{partitions} partitions x {stores} stores x (3 write buffers x 64 MiB + 16 MiB of cache), in memory",
        style="dim",
    )
    Console(width=None if sys.stdout.isatty() else 240, highlight=False).print(table)


@app.command()
def instance() -> None:
    """Host stores and answer queries, as `app.run()` starts it: the configuration is one line of JSON on stdin.

    It stops on SIGTERM, and when stdin closes because whoever started it is gone.
    """
    if not (line := sys.stdin.buffer.readline().strip()):
        raise SettingsError(
            "holdfast instance wants its configuration as one line of JSON on standard input. `app.run()` starts "
            "instances by itself."
        )
    from holdfast.lean import leave_pandas_out, share_one_allocator

    share_one_allocator()
    leave_pandas_out()
    from holdfast.serving import run

    run(line)


@app.command()
def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="End after so many seconds; without it Ctrl-C ends it.", show_default=False),
    ] = None,
) -> None:
    """A video game's scores: a generated stream, Spark, a store and its REST address, live in the terminal."""
    from holdfast.demo import run

    run(seconds)


def main() -> None:
    """What the `holdfast` script calls."""
    try:
        app()
    except HoldfastError as error:
        Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(f"holdfast: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
