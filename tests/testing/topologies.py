"""Random topologies and inputs, the same for the test driver and for Spark."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa

import holdfast as hf

START = datetime(2030, 1, 1, tzinfo=UTC)
GAMES = "player string, city string, points bigint, x double, at timestamp, n bigint"
SCHEMA = pa.schema(
    [
        ("player", pa.string()),
        ("city", pa.string()),
        ("points", pa.int64()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("n", pa.int64()),
    ]
)
SOURCES = ("games", "others", "changes", "cities")
ZIPS = pa.table({"city": ["Bern", "Ulm"], "zip": [3000, 89073]})
Batch = dict[str, list[dict[str, Any]]]


class Streaks(hf.Processor):
    """Keeps points per player and, by event time, says who has some."""

    total = hf.KeyValueStore("streak-total", value=int)
    seen = hf.KeyValueStore("streak-seen", value=int, max_entries=3)
    cities = hf.GlobalStore("cities")

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.total[key] = self.total.get(key, 0) + (event.points or 0)
        self.seen[key] = event.n
        ctx.forward(key, {"total": self.total[key], "city": event.city})
        if event.points == 13:
            ctx.forward(key, {"n": event.n + sum(row["n"] for row in self.cities.values())}, to="alerts")

    @hf.punctuate(every="20s", time="stream")
    def look(self, now: int, ctx: hf.Context) -> None:
        for key, total in self.total.items():
            ctx.forward(key, {"total": total, "city": None})


class Strict(hf.Processor):
    """Fails for some records, after it has written and forwarded."""

    of_player = hf.KeyValueStore("strict-of-player", value=int)
    seen = hf.KeyValueStore("strict-seen", value=int, max_entries=2)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.of_player[key] = self.of_player.get(key, 0) + 1
        self.seen[key] = event.n
        ctx.forward(key, {"n": event.n})
        ctx.count("strict")
        if event.points == 6:
            raise ValueError(f"{event.points} points")


def build(app: hf.App, frames: dict[str, Any], random: Random, *, with_steps: bool) -> None:
    """Adds operators of every kind, each in one of its forms. Stateless steps need Spark."""
    games, others = (
        app.stream(frames[name], key="player", timestamp="at", position="n", name=name) for name in SOURCES[:2]
    )
    kept: dict[str, Any] = random.choice([{"history": "30s"}, {}])
    changes = app.table(frames["changes"], "changes", key="player", timestamp="at", position="n", **kept)
    cities = app.global_table(frames["cities"], "cities", key="city", timestamp="at", position="n")
    zips = app.global_table(ZIPS, "zips", key="city")
    if with_steps:
        games = games.where("points IS NULL OR points <> 7").with_column("points", "points + 1")
        high, low = others.branch("points > 5")
        high.group_by().count().store("high")
        low.group_by("city").aggregate(odd=hf.sum("points * 2 + 1")).store("low")
        items = others.flat_map("sequence(0, points % 3)", "item")
        per_item = items.group_by(*_some(random, [("item",), ("player",)]))
        per_item.aggregate(n=hf.count(), most=hf.max("n")).store("items")
        for name in ("failing", "failing-too"):  # for the same records
            shares = others.on_error(_kept_going(random)).with_column("share", "12 div points")
            shares.group_by().aggregate(n=hf.count(), total=hf.sum("share")).store(name)
        items.on_error(_kept_going(random)).group_by("city").aggregate(n=hf.sum("12 div item")).store("failing-items")
    _aggregate(games.group_by(*_some(random, [(), ("city",), ("player", "city")])), random).store("plain")
    options: list[dict[str, Any]] = [{"max_entries": 2}, {"history": "1h"}, {}]
    _aggregate(others.group_by(), random).store("bounded", **random.choice(options))
    grouped = games.merge(others).group_by() if not with_steps else games.group_by()
    windows = _windows(random)
    table = _aggregate(grouped.window(windows), random).store("windowed", **_emit(random))
    if random.random() < 0.5 and "every" not in str(table.spec.fixed):
        table.final()
    table.late.to_stream().group_by().aggregate(n=hf.count(), most=hf.max("points")).store("late-windowed")
    some: list[Any] = [
        hf.hopping("30s", every="10s", grace="10s"),
        hf.session("10s", grace="10s"),
        hf.sliding("10s", grace="10s"),
    ]
    of_lists = random.choice([hf.tumbling("20s", grace="10s"), *some])
    _in_windows(games, others, of_lists, random).store("lists", **_emit(random))
    reduced = games.group_by().window(random.choice(some)).reduce(max, of="points")
    largest = reduced.store("window-largest", **_emit(random))
    largest.late.to_stream().group_by().count().store("late-largest")
    if "every" not in str(largest.spec.fixed):
        largest.final()
    made = games.process(
        Streaks,
        output="player string, total bigint, city string",
        outputs={"alerts": "player string, n bigint"},
        name="streaks",
    )
    strict = others.process(Strict, output="player string, n bigint", name="strict", on_error=_kept_going(random))
    forwarded = strict.to_stream(key="player")
    forwarded.group_by().count().store("forwarded-by-strict")
    if with_steps:
        for name in ("failing-after-strict", "failing-after-strict-too"):
            shares = forwarded.on_error(_kept_going(random)).with_column("share", "12 div (n % 3)")
            shares.group_by().aggregate(total=hf.sum("share")).store(name)
    by_city = made.to_stream(key="city").group_by().aggregate(players=hf.count(), most=hf.max("total")).store("by-city")
    counts = others.group_by().count().store("counts")
    counts.to_stream().key_by("count").group_by().aggregate(players=hf.count()).store("players-per-count")
    games.join(changes, how=random.choice(["inner", "left"]), name="looked-up", prefix="c_")
    # Inner: a dead letter has its position, and which task a row of a join without a shuffle is in is Spark's choice.
    with_zip = games.join(zips, on="city", how="inner", name="with-zip")
    with_zip.to_stream().group_by("zip").count().store("per-zip")
    games.join(cities, on="city", how=random.choice(["inner", "left"]), name="with-city", prefix="c_")
    counts.join(changes, how=random.choice(["inner", "left", "outer"]), name="both")
    changes.join(by_city, on="city", how=random.choice(["inner", "left"]), name="linked")
    counts.top(2, by="count", name="top2")
    others.group_by().reduce(max, of="points").store("largest")
    hf.cogroup((games.group_by(), _add), (others.group_by(), _subtract)).aggregate_with(int, value=int).store("balance")
    within = hf.join_window("15s", grace="10s")
    games.join(others, within=within, how=random.choice(["inner", "left", "outer"]), name="pairs", prefix="o_")


def _add(balance: int, event: Any) -> int:
    return balance + (event.points or 0)


def _subtract(balance: int, event: Any) -> int | None:
    """A balance of zero is no balance."""
    return balance - (event.points or 0) or None


def _in_windows(games: hf.Stream, others: hf.Stream, windows: Any, random: Random) -> Any:
    """Lists of numbers per window: of one stream or of two, by a function that may fail."""
    options: dict[str, Any] = {"value": list[int], "on_error": _kept_going(random)}
    if isinstance(windows, type(hf.session("10s"))):
        options["merger"] = _list_both
    if random.random() < 0.5:
        return games.group_by().window(windows).aggregate_with(list, _list, **options)
    both = hf.cogroup((games.group_by(), _list), (others.group_by(), _list_other))
    return both.window(windows).aggregate_with(list, **options)


def _list(numbers: list[int], event: Any) -> list[int] | None:
    """A list of three is complete, and starts over."""
    if event.points == 13:
        raise ValueError("13 points")
    return [*numbers, event.n] if len(numbers) < 3 else None


def _list_other(numbers: list[int], event: Any) -> list[int]:
    return [*numbers, -event.n]


def _list_both(earlier: list[int], later: list[int]) -> list[int]:
    return [*earlier, *later]


def _kept_going(random: Random) -> Any:
    """A mode in which a failed record doesn't stop the app."""
    return random.choice(["skip", "dead_letter"])


def _some(random: Random, choices: list[tuple[str, ...]]) -> tuple[str, ...]:
    return random.choice(choices)


def _aggregate(grouped: Any, random: Random) -> Any:
    every: dict[str, Callable[[], Any]] = {
        "rows": hf.count,
        "some": lambda: hf.count("points"),
        "total": lambda: hf.sum("points"),
        "least": lambda: hf.min("x"),
        "most": lambda: hf.max("points"),
        "mean": lambda: hf.mean("points"),
        "early": lambda: hf.first("points"),
        "late": lambda: hf.last("city"),
        "town": lambda: hf.max("city"),
        "recent": lambda: hf.collect("points", limit=3),
    }
    names = random.sample(sorted(every), random.randint(1, 5))
    return grouped.aggregate(**{name: every[name]() for name in names})


def _windows(random: Random) -> Any:
    grace = random.choice(["0s", "10s", "40s"])
    made: list[Callable[[], Any]] = [
        lambda: hf.tumbling("20s", grace=grace),
        lambda: hf.hopping("30s", every="10s", grace=grace),
        lambda: hf.sliding("10s", grace=grace),
        lambda: hf.session("10s", grace=grace),
    ]
    return random.choice(made)()


def _emit(random: Random) -> dict[str, Any]:
    choices: list[dict[str, Any]] = [{}, {"emit": hf.every("15s")}, {"emit": "updates"}]
    return random.choice(choices)


def inputs(random: Random) -> list[Batch]:
    """Batches with records that are late, unusable or neither, and batches in which a source has none."""
    batches: list[Batch] = []
    number, now = 0, 0.0
    for _ in range(random.randint(2, 5)):
        batch: Batch = {}
        for source in SOURCES:
            rows = []
            for _ in range(random.choice([0, 1, 4, 8])):
                number += 1
                now += random.random() * 5
                rows.append(_record(random, number, now))
            batch[source] = rows
        batches.append(batch)
    return batches


def _record(random: Random, number: int, now: float) -> dict[str, Any]:
    seconds = now - random.choice([0, 0, 3, 30, 90])
    at = START + timedelta(milliseconds=round(seconds * 1000))
    return {
        "player": random.choice(["ann", "bob", "cid", "dee", *([None] if random.random() < 0.1 else [])]),
        "city": random.choice(["Bern", "Ulm", "Zürich"]),
        "points": random.choice([None, 0, 3, 6, 7, 13]),
        "x": random.choice([None, 0.5, -2.0, float("nan")]),
        "at": random.choice([None, at + timedelta(hours=9)]) if random.random() < 0.05 else at,
        "n": number,
    }
