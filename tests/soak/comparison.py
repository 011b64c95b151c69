"""What a soak's stores and sinks have, compared with Spark SQL over the same input, exactly.

    python -m tests.soak.comparison <folder>         prints the result as JSON

The history has the version of each input file and the release that made it. So the truth is known for every version:
which records counted in `levels` since it was added or started over, and in `best` since it was added again.
"""

import bisect
import json
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from tests.soak.app import SCHEMA
from tests.soak.history import Made, runs

EXAMPLES = 5


class Compared(msgspec.Struct):
    """One comparison: how many rows, and which of them differ."""

    what: str
    rows: int
    different: int
    examples: list[str]


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    made = msgspec.json.decode((folder / "history.json").read_bytes(), type=list[Made])
    found = Comparison(spark, folder, made).all()
    print(msgspec.json.encode(found).decode(), flush=True)


class Comparison:
    """The comparisons of one soak."""

    def __init__(self, spark: SparkSession, folder: Path, made: Sequence[Made]) -> None:
        self._spark, self._folder, self._made = spark, folder, made
        releases = [each.has for each in made]
        best = runs([each.best for each in releases], [False] * len(made))
        levels = runs([each.levels for each in releases], [each.returned == "continue" for each in releases])
        self._best, self._levels = best[-1], levels[-1]
        following = [*releases[1:], releases[-1]]
        rows = [
            (each.version, best_run, levels_run, has.best, has.best and then.best, has.copy and then.copy,
             has.levels and then.levels)
            for each, best_run, levels_run, has, then in zip(made, best, levels, releases, following, strict=True)
        ]  # fmt: skip
        schema = (
            "version long, best_run int, levels_run int, with_best boolean, best_stays boolean, copy_stays boolean, "
            "levels_stay boolean"
        )
        self._versions = spark.createDataFrame(rows, schema)
        self._records = self._counted().cache()

    def all(self) -> list[Compared]:
        totals = self._totals_by_version().cache()
        return [
            self._history(),
            self._input(),
            self._store("totals", "player", ["games", "points", "best"], self._totals()),
            self._store("levels", "level", ["games"], self._level_counts()),
            self._sink("out", totals, "player", F.lit(True)),
            self._sink("copy", totals, "player", F.col("copy_stays")),
            self._sink("levels", self._levels_by_version(), "level", F.col("levels_stay")),
            self._newest_rows(),
        ]

    # What is true

    def _files(self) -> dict[str, int]:
        """Each input file's version. Spark's checkpoint has the files of each batch of the source."""
        offsets = [each.offset for each in self._made]
        found = {}
        for path in (self._folder / "base" / "soak" / "checkpoint" / "sources" / "0").glob("[0-9]*"):
            for line in path.read_text().splitlines()[1:]:
                entry = json.loads(line)
                place = bisect.bisect_left(offsets, entry["batchId"])
                if place < len(offsets):
                    found[entry["path"].rpartition("/")[2]] = self._made[place].version
        return found

    def _counted(self) -> DataFrame:
        """The records, each with its version."""
        files = self._spark.createDataFrame(list(self._files().items()), "file string, version long")
        records = self._spark.read.schema(SCHEMA).parquet(str(self._folder / "input"))
        named = records.withColumn("file", F.col("_metadata.file_name"))
        return named.join(F.broadcast(files), "file").join(F.broadcast(self._versions), "version")

    def _totals(self) -> DataFrame:
        counted = F.when(F.col("best_run") == F.lit(self._best), F.col("points"))
        return self._records.groupBy("player").agg(
            F.count("*").alias("games"), F.sum("points").alias("points"), F.max(counted).alias("best")
        )

    def _level_counts(self) -> DataFrame:
        current = self._records.where(F.col("levels_run") == F.lit(self._levels))
        return current.groupBy("level").agg(F.count("*").alias("games"))

    def _totals_by_version(self) -> DataFrame:
        """The row of each player after each version that has records of the player."""
        so_far = Window.partitionBy("player").orderBy("version")
        with_best = Window.partitionBy("player", "best_run").orderBy("version")
        changes = self._records.groupBy("player", "version").agg(
            F.count("*").alias("n"), F.sum("points").alias("p"), F.max("points").alias("m")
        )
        return changes.join(F.broadcast(self._versions), "version").select(
            *("player", "version", "best_stays", "copy_stays"),
            F.sum("n").over(so_far).alias("games"),
            F.sum("p").over(so_far).alias("points"),
            F.when(F.col("with_best"), F.max("m").over(with_best)).alias("best"),
        )

    def _levels_by_version(self) -> DataFrame:
        so_far = Window.partitionBy("level", "levels_run").orderBy("version")
        counted = self._records.where("levels_run is not null").groupBy("level", "version", "levels_run").count()
        joined = counted.join(F.broadcast(self._versions.drop("levels_run")), "version")
        return joined.select("level", "version", "levels_stay", F.sum("count").over(so_far).alias("games"))

    # Comparisons

    def _history(self) -> Compared:
        expected = set(range(1, self._made[-1].version + 1))
        missed = sorted(expected - {each.version for each in self._made})
        return Compared("versions that were seen", len(expected), len(missed), [str(n) for n in missed[:EXAMPLES]])

    def _input(self) -> Compared:
        there = {path.name for path in (self._folder / "input").glob("*.parquet")}
        missing = sorted(there - set(self._files()))
        return Compared("input files in a version", len(there), len(missing), missing[:EXAMPLES])

    def _store(self, store: str, key: str, columns: Sequence[str], truth: DataFrame) -> Compared:
        stored = json.loads((self._folder / "stores.json").read_bytes())[store]
        rows = [(entry["key"], *(entry[column] for column in columns)) for entry in stored]
        key_type = "string" if key == "player" else "long"
        schema = ", ".join([f"{key} {key_type}", *(f"{column} long" for column in columns)])
        found = self._spark.createDataFrame(rows, schema)
        equal = [F.col(f"found.{column}").eqNullSafe(F.col(f"truth.{column}")) for column in columns]
        return _compared(f"store {store}", found, truth, [key], equal)

    def _sink(self, name: str, truth: DataFrame, key: str, required: Column) -> Compared:
        """The rows of each version. A sink that is dropped after a crash may lack the version before the crash."""
        found, wrong = self._delivered(name, key)
        equal = [F.col("found.games").eqNullSafe(F.col("truth.games"))]
        if key == "player":
            best, true_best = F.col("found.best"), F.col("truth.best")
            equal.append(F.col("found.points").eqNullSafe(F.col("truth.points")))
            # A version that is delivered after a crash, or when a sink comes back, has the columns of the code then.
            later = ~F.col("best_stays") | ~required
            equal.append(best.eqNullSafe(true_best) | (best.isNull() & later))
        given_up = F.col(f"found.{key}").isNull() & ~required
        compared = _compared(f"rows of sink {name}", found, truth, [key, "version"], equal, given_up)
        compared.different += len(wrong)
        compared.examples = [*wrong, *compared.examples][:EXAMPLES]
        return compared

    def _delivered(self, name: str, key: str) -> tuple[DataFrame, list[str]]:
        """The rows of complete versions, and files that are listed and missing or there and not listed."""
        folder = self._folder / name
        marks = [json.loads(path.read_bytes()) for path in sorted((folder / "_versions").glob("*.json"))]
        listed = {entry["file"] for mark in marks for entry in mark["files"]}
        complete = {mark["version"] for mark in marks}
        there = {path.name for path in folder.glob("*.parquet") if int(path.name.partition("-")[0]) in complete}
        versions = self._spark.createDataFrame([(version,) for version in complete], "version long")
        rows = self._rows(name, key).withColumnRenamed("_version", "version").join(F.broadcast(versions), "version")
        return rows, [f"{file} is listed or there, not both" for file in sorted(listed ^ there)]

    def _rows(self, name: str, key: str) -> DataFrame:
        columns = "player string, points long, best long" if key == "player" else "level long"
        return self._spark.read.schema(f"{columns}, games long, _version long").parquet(str(self._folder / name))

    def _newest_rows(self) -> Compared:
        """The newest row per key of the whole folder, as a reader who knows only the files finds it."""
        row = F.max_by(F.struct("games", "points"), "_version").alias("row")
        found = self._rows("out", "player").groupBy("player").agg(row).select("player", "row.games", "row.points")
        equal = [F.col(f"found.{column}").eqNullSafe(F.col(f"truth.{column}")) for column in ("games", "points")]
        return _compared("newest row per key in out", found, self._totals(), ["player"], equal)


def _compared(
    what: str,
    found: DataFrame,
    truth: DataFrame,
    keys: Sequence[str],
    equal: Sequence[Column],
    allowed: Column | None = None,
) -> Compared:
    """Compares two tables row by row. A row that only one of them has, unless it is allowed, or has twice differs."""
    same_key = reduce(lambda a, b: a & b, [F.col(f"found.{key}") == F.col(f"truth.{key}") for key in keys])
    joined = found.alias("found").join(truth.alias("truth"), same_key, "full_outer")
    in_both = F.col(f"found.{keys[0]}").isNotNull() & F.col(f"truth.{keys[0]}").isNotNull()
    right = reduce(lambda a, b: a & b, equal, in_both)
    wrong = ~F.coalesce(right if allowed is None else right | allowed, F.lit(False))
    [(rows, different)] = joined.agg(F.count_if(in_both), F.count_if(wrong)).collect()
    examples = [f"{row.asDict()} is there twice" for row in _twice(found, keys)]
    different += len(examples)
    if different > len(examples):
        columns = [F.col(f"found.{c}").alias(c) for c in found.columns]
        columns += [F.col(f"truth.{c}").alias(f"true_{c}") for c in truth.columns]
        examples += [str(row.asDict()) for row in joined.where(wrong).select(*columns).limit(EXAMPLES).collect()]
    return Compared(what, rows, different, examples)


def _twice(found: DataFrame, keys: Sequence[str]) -> list[Row]:
    return found.groupBy(*keys).count().where("count > 1").limit(EXAMPLES).collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
