"""`make demo`: the scores of a video game, from a generated stream to a store that can be queried, live."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

import holdfast as hf
from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK

RECORDS_PER_SECOND = 5_000
PLAYERS = 1_000


@dataclass(frozen=True)
class DemoStatus:
    """The numbers in the terminal."""

    seconds: float
    records: float
    rate: float
    version: int
    lag_seconds: float
    players: list[dict[str, object]]


def pipeline(app: hf.App) -> None:
    """Points per player, from Spark's rate source."""
    events = (
        app.reader("rate")
        .option("rowsPerSecond", RECORDS_PER_SECOND)
        .option("numPartitions", 2)
        .load()
        .selectExpr(
            f"concat('player-', lpad(cast(pmod(hash(value), {PLAYERS}) as string), 4, '0')) AS player",
            "cast(pmod(hash(value, 7), 100) as int) AS points",
            "timestamp AS at",
        )
    )
    scores = app.stream(events, key="player", timestamp="at")
    table = (
        scores.where("points > 0")
        .group_by()
        .aggregate(games=hf.count(), total=hf.sum("points"), best=hf.max("points"), last_points=hf.last("points"))
        .store("scores")
    )
    table.sink(hf.files(str(Path(app.settings.base_dir, app.id, "scores"))))


def run(seconds: float | None = None) -> None:
    """Runs the demo until Ctrl-C or for this many seconds, and prints a summary."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    log = logging.FileHandler(folder / "demo.log")  # the terminal is for the live view
    logging.getLogger().addHandler(log)
    console.print("Starting Spark, one instance and REST ...")
    settings = hf.Settings(base_dir=str(folder), spark=hf.SparkSettings(config={"spark.ui.enabled": "false"}))
    app = hf.App("demo", settings=settings)
    stop = threading.Event()
    handlers = {n: signal.signal(n, lambda number, frame: stop.set()) for n in _SIGNALS}
    try:
        app.spark.sparkContext.setLogLevel("OFF")  # the app raises its errors itself
        pipeline(app)
        app.start()
        _watch(app, console, stop, seconds)
    finally:
        app.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logging.getLogger().removeHandler(log)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
    if app.cause is not None:
        raise app.cause


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _watch(app: hf.App, console: Console, stop: threading.Event, seconds: float | None) -> None:
    address = app.address or ""
    console.print(
        f"Query it while it runs:\n  curl {address}/v1/stores/scores/keys/player-0007\n  curl {address}/v1/state"
    )
    began = SYSTEM_CLOCK.monotonic()
    is_warm, earlier = False, 0.0
    status = DemoStatus(0, 0, 0, app.version, 0, [])
    with httpx2.Client(base_url=address, timeout=5) as client, Live(console=console, refresh_per_second=4) as live:
        while not stop.is_set() and app.cause is None:
            if not is_warm and app.version:  # the time counts from the first version, after Spark's start
                is_warm, began, status = True, SYSTEM_CLOCK.monotonic(), replace(status, seconds=0.0)
                earlier = metrics.value("holdfast_records_total")
            status = _status(app, client, SYSTEM_CLOCK.monotonic() - began, status)
            live.update(_rendered(status, address))
            if is_warm and seconds is not None and status.seconds >= seconds:
                break
            stop.wait(0.5)
        _summary(console, app, client, status, earlier)


def _status(app: hf.App, client: httpx2.Client, seconds: float, before: DemoStatus) -> DemoStatus:
    records = metrics.value("holdfast_records_total")
    passed = seconds - before.seconds
    rate = (records - before.records) / passed if passed > 0 else 0.0
    entries = _all_players(client)
    players = sorted(entries, key=lambda e: -int(str(e["total"])))[:8]
    newest = max((int(str(e["timestamp"])) for e in entries), default=0)
    lag = max(0.0, (SYSTEM_CLOCK.now() - newest) / 1000) if newest else 0.0
    return DemoStatus(seconds, records, 0.7 * before.rate + 0.3 * rate, app.version, lag, players)


def _all_players(client: httpx2.Client) -> list[dict[str, object]]:
    answer = client.get("/v1/stores/scores/range", params={"limit": 10_000})
    if answer.status_code != 200:
        return []
    return [
        {"player": entry["key"], "timestamp": entry.get("timestamp") or 0, **entry["value"]}
        for entry in json.loads(answer.content)["entries"]
    ]


def _rendered(status: DemoStatus, address: str) -> Group:
    top = Table(title="top players", title_justify="left", expand=False)
    for column in ("player", "total", "games", "best", "last_points"):
        top.add_column(column, justify="left" if column == "player" else "right")
    for row in status.players:
        top.add_row(*[str(row[c]) for c in ("player", "total", "games", "best", "last_points")])
    line = (
        f"{status.rate:>9,.0f} records/s   version {status.version}   {status.records:,.0f} records   "
        f"lag {status.lag_seconds:.1f} s   {status.seconds:.0f} s"
    )
    if not status.version:
        line = f"Spark is preparing its first batch ...   {status.seconds:.0f} s"
    return Group(Panel(line, title="holdfast demo", subtitle=address), top)


def _summary(console: Console, app: hf.App, client: httpx2.Client, status: DemoStatus, earlier: float) -> None:
    entries = _all_players(client)
    table = Table(title="summary", show_header=False, title_justify="left")
    table.add_row("ran for", f"{status.seconds:.0f} s")
    table.add_row("records", f"{status.records:,.0f}")
    table.add_row("records/s", f"{(status.records - earlier) / max(status.seconds, 1):,.0f}")
    table.add_row("versions", str(app.version))
    table.add_row("players in the store", f"{len(entries):,}")
    if status.players:
        best = status.players[0]
        table.add_row("leader", f"{best['player']} with {best['total']} points in {best['games']} games")
    console.print(table)
