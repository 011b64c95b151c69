"""A leaderboard of video games: the top three of each game, and the rank of every player.

    .venv/bin/python examples/leaderboard.py     # prints the top three of each game and a player's rank, and ends

A score has the ids of a player and of a product. Players and products are tables, which change too: the newest row per
id counts. A score of a player whom the table doesn't have is left out.

    scores     ── p-1, g-1, 70 ──►──┐
    players    p-1 → alice ─────────┼──► alice, Chess, 70 ──► high-scores ──► top3
    products   g-1 → Chess ─────────┘                         alice's best    Chess → alice, bob, dora
"""

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark.sql import SparkSession

import holdfast as hf

DATA = Path(__file__).parent / "data"
SCORES = "player string, product string, points int, at timestamp"
PLAYERS = "id string, name string"
PRODUCTS = "id string, title string"


def build(app: hf.App, scores: Any, players: Any, products: Any) -> None:
    """The topology, of streaming DataFrames or of the records of a test."""
    with_player = app.stream(scores, key="player", timestamp="at", name="scores").join(
        app.table(players, "players", key="id"), name="with-player"
    )
    with_title = with_player.to_stream().join(
        app.table(products, "products", key="id"), on="product", name="with-title"
    )
    high_scores = (
        with_title.to_stream()
        .group_by("title", "name")
        .aggregate(points=hf.max("points"), games=hf.count())
        .store("high-scores")  # GET /v1/stores/high-scores/keys/["Chess","alice"]
    )
    high_scores.top(3, by="points", per="title", name="top3")  # GET /v1/stores/top3/keys/Chess


def ask(app: hf.App, path: str) -> Any:
    with urllib.request.urlopen(f"{app.address}/v1/stores/{quote(path)}") as answer:
        return json.load(answer)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    scores, players, products = (
        spark.readStream.schema(columns).json(str(DATA / name))
        for name, columns in (("scores", SCORES), ("players", PLAYERS), ("products", PRODUCTS))
    )
    with tempfile.TemporaryDirectory() as folder:
        app = hf.App("leaderboard", settings=hf.Settings(base_dir=folder), spark=spark)
        build(app, scores, players, products)
        with app:
            app.process_all_available()
            for title in ("Chess", "Go"):
                best = ask(app, f"top3/keys/{title}")["value"]
                print(f"{title}:", ", ".join(f"{row['name']} {row['points']}" for row in best))
            (found,) = ask(app, 'top3/rank/["Chess","cleo"]')["rank"]
            print(f"cleo has rank {found['rank']} in Chess")


if __name__ == "__main__":
    main()
