"""The `holdfast` command: what runs, what holds and what it is set to.

An error of Holdfast's own is one line on stderr that says what to do, and exit code 1. Commands import what they run
when they run it, so that one doesn't wait for what another needs.
"""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from holdfast.errors import HoldfastError, SettingsError
from holdfast.settings import load

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
