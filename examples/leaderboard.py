"""A leaderboard: games arrive as JSON files, a store keeps the points per player, and HTTP answers queries about it.

    .venv/bin/python examples/leaderboard.py              # reads examples/data/games, or the folder you name
    curl localhost:8080/v1/stores/players/keys/alice      # in another terminal

It runs until you press Ctrl-C. Copy another file into the folder while it runs, and the answers change.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf

folder = sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parent / "data" / "games")

spark = SparkSession.builder.master("local[2]").appName("leaderboard").getOrCreate()
games = spark.readStream.schema("player string, points int, at timestamp").json(folder)

app = hf.App("leaderboard")  # log, state and checkpoint are under ./.holdfast
players = (
    app.stream(games, key="player", timestamp="at")  # any streaming DataFrame
    .where("points > 0")  # stateless steps are plain PySpark
    .group_by("player")
    .aggregate(games=hf.count(), total=hf.sum("points"), best=hf.max("points"), latest=hf.last("points"))
    .store("players")  # durable, restored after a crash, open to queries
)
players.sink(hf.files("leaderboard/"))  # the changes of each version, exactly once, as Parquet

if __name__ == "__main__":
    print(app.describe())
    print("Press Ctrl-C to stop.")
    app.run()
