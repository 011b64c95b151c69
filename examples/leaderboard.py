"""A leaderboard: games as JSON files in, points per player in a store, answers over HTTP.

python examples/leaderboard.py games/            then, in another terminal:
curl localhost:8080/v1/stores/players/keys/alice
"""

import sys

from pyspark.sql import SparkSession

import holdfast as hf

spark = SparkSession.builder.master("local[2]").appName("leaderboard").getOrCreate()
games = spark.readStream.schema("player string, points int, at timestamp").json(sys.argv[1])

app = hf.App("leaderboard")
players = (
    app.stream(games, key="player", timestamp="at")
    .where("points > 0")
    .group_by("player")
    .aggregate(games=hf.count(), total=hf.sum("points"), best=hf.max("points"), latest=hf.last("points"))
    .store("players")
)
players.sink(hf.files("leaderboard/"))

if __name__ == "__main__":
    print(app.describe())
    app.run()
