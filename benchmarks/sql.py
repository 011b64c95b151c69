"""SQL over a store of a million rows: how long statements take, from the request to the answer.

A real app has a count, a sum and a maximum per player, as in `dataframe`. Statements go through `POST /v1/sql` while
the source is quiet: the ten players with most points, one player by its key, a group by, and a join of the store with
itself by the key. The first statement also starts a worker.
"""

import argparse
import json
import time
import urllib.request
from typing import Any

import numpy as np

from benchmarks.common import finish, median, scratch, show, spark_session
from benchmarks.dataframe import KEYS, players_app, points_of, write_players

STATEMENTS = {
    "top 10": "SELECT player, points FROM players ORDER BY points DESC LIMIT 10",
    "one key": "SELECT points FROM players WHERE player = 'player-0500000'",
    "group by": "SELECT points % 10 AS digit, count(*), avg(best) FROM players GROUP BY digit ORDER BY digit",
    "join": "SELECT count(*) FROM players a JOIN players b USING (player) WHERE b.points > 500000000",
}


def expected() -> dict[str, Any]:
    """The rows of each statement, computed without SQL."""
    points = points_of(KEYS)
    top = np.argsort(-points, kind="stable")[:10]
    digits = points % 10
    return {
        "top 10": [[f"player-{n:07d}", int(points[n])] for n in top],
        "one key": [[int(points[500_000])]],
        "group by": [[d, int((digits == d).sum()), float(points[digits == d].mean())] for d in range(10)],
        "join": [[int((points > 500_000_000).sum())]],
    }


def check(name: str, rows: Any, wanted: Any) -> None:
    same = len(rows) == len(wanted) and all(
        np.allclose(one, other, rtol=1e-9, atol=0) if name == "group by" else one == other
        for one, other in zip(rows, wanted, strict=True)
    )
    assert same, f"{name}: {rows} and not {wanted}"


def run(address: str, sql: str) -> Any:
    body = json.dumps({"sql": sql}).encode()
    request = urllib.request.Request(f"{address}/v1/sql", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = parser.parse_args().quick
    repeats = 3 if quick else 11
    spark = spark_session()
    right = expected()
    taken: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    with scratch("sql") as folder:
        write_players(folder / "input", KEYS)
        with players_app(spark, folder) as app:
            app.process_all_available()
            address = str(app.address)
            began = time.monotonic()
            assert run(address, "SELECT count(*) FROM players")["rows"] == [[KEYS]]
            first = time.monotonic() - began
            for _ in range(repeats):
                for name, sql in STATEMENTS.items():
                    began = time.monotonic()
                    rows = run(address, sql)["rows"]
                    taken[name].append((time.monotonic() - began) * 1000)
                    check(name, rows, right[name])
    spark.stop()
    shown: list[list[object]] = [["the first one, a count", first * 1000, first * 1000]]
    shown += [[name, median(each), max(each)] for name, each in taken.items()]
    show(f"statements over {KEYS:,} rows, ms", ["", "median", "most"], shown)
    finish(
        top10_ms=median(taken["top 10"]),
        one_key_ms=median(taken["one key"]),
        group_by_ms=median(taken["group by"]),
        join_ms=median(taken["join"]),
        first_ms=first * 1000,
        quick=quick,
    )


if __name__ == "__main__":
    main()
