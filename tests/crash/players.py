"""The processor that crash tests kill: eight stores of five kinds, with drops and evictions, on real Spark.

    python -m tests.crash.players <folder>           runs until all input is processed, then compares

The folder is kept between kills. Every store and the file sink are compared with a plain program over the same input.
"""

import json
import logging
import random
import sys
from pathlib import Path

import holdfast as hf
from tests.apps import write
from tests.crash.scenario import EVERY_STEP, process_all
from tests.test_processors import ARROW, FADING_MS, Model, check, delivered, players_app, records

FILES = 10


def write_input(folder: Path) -> None:
    dice = random.Random(11)
    for number in range(FILES):
        write(folder / "input", number, records(number, dice), ARROW)


def model() -> Model:
    """The expected contents of the stores."""
    dice, found = random.Random(11), Model()
    for number in range(FILES):
        found.batch(records(number, dice))
    assert any(start <= found.clock - FADING_MS for _, start in found.fading), "some windows are dropped"
    assert sum(len(partition.entries) for partition in found.recent) < len(found.totals), "some entries are evicted"
    return found


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    spark = hf.App("session", settings=hf.Settings(spark=hf.SparkSettings(master="local[2]"))).spark
    app = players_app(spark, folder, **EVERY_STEP)
    true = model()
    with app:
        process_all(app)
        check(app, true)
    rows = [(row["player"], row["games"], row["at"]) for row in delivered(folder / "out")]
    assert sorted(rows) == sorted(true.forwarded)
    print(json.dumps({"version": app.version, "players": len(true.totals)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
