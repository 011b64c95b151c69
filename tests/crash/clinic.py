"""The app of five sub-topologies that crash tests kill: two sources, final windows, two joins and a punctuator.

    python -m tests.crash.clinic <folder>            runs until all input is processed, then compares

    beats ───► rates (windows) ─► final rows ─┬─► sink
    temps ────────────────────────────────────┴─► alerts (left join of both) ─► sink
      └──► warmest (table) ─┐
    beats ──────────────────┴─► with-warmest (left join) ─► ledger (processor, punctuator) ─► sink

The folder is kept between kills. Stores and sinks are compared with a plain program, `clinic_oracle.py`, which gets the
batches as Spark has made them (`spark_batches.py`). Between two batches the driver may make a version on its own; what
it changes depends on the clocks alone.
"""

import json
import logging
import random
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import holdfast as hf
from tests.apps import entries_of, read, write
from tests.crash.clinic_oracle import EVERY_S, GRACE_S, WINDOW_S, Batch, Beat, Temperature, Truth, truth, within
from tests.crash.scenario import crashing, process_all
from tests.crash.spark_batches import files_of_batches
from tests.test_processors import delivered

START = datetime(2026, 1, 1, tzinfo=UTC)
PATIENTS = [f"patient-{n}" for n in range(6)]
BEAT = pa.schema([("patient", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
TEMPERATURE = pa.schema([("patient", pa.string()), ("tenths", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
BEATS = "patient string, n bigint, at timestamp"
TEMPS = "patient string, tenths bigint, at timestamp"
STORES, OUTPUTS = ("booked", "waiting", "warmest", "fired"), ("final", "alerts", "ledger")
PARTITIONS = 2
"""As in all apps of these tests."""
STEP_S = 12
"""The event time that a file takes: more than the interval of the punctuator, which thus fires after each batch."""


class Ledger(hf.Processor):
    """Collects amounts per patient, and books them when time has passed."""

    waiting = hf.KeyValueStore("waiting", value=int)
    booked = hf.KeyValueStore("booked", value=int)
    fired = hf.KeyValueStore("fired", key=(int, int), value=int, other_key=True)
    """Per partition and time: how often the punctuator was called."""

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.waiting[key] = self.waiting.get(key, 0) + event.n * (event.warmest or 1)

    @hf.punctuate(every=f"{EVERY_S}s", time="stream")
    def book(self, now: int, ctx: hf.Context) -> None:
        for patient, amount in self.waiting.items():
            self.booked[patient] = self.booked.get(patient, 0) + amount
            self.waiting.delete(patient)
            ctx.forward(patient, {"amount": amount})
        self.fired[ctx.partition, now] = self.fired.get((ctx.partition, now), 0) + 1


def made_up(files: int) -> list[Batch]:
    """The records of each file of both sources: the same every time, some of them late."""
    dice = random.Random(3)
    found: list[Batch] = []
    for number in range(files):
        base, first = number * STEP_S * 1_000, number * 40
        beats = [
            Beat(dice.choice(PATIENTS), n, base + dice.randrange(-15_000, 10_000)) for n in range(first, first + 39)
        ]
        beats.append(Beat(PATIENTS[0], first + 39, base + 10_000))
        temperatures = [
            Temperature(dice.choice(PATIENTS), dice.randrange(360, 420), base + dice.randrange(-15_000, 10_000))
            for _ in range(3)
        ]
        temperatures.append(Temperature(dice.choice(PATIENTS), dice.randrange(360, 420), base + 11_000))
        found.append((beats, temperatures))
    return found


def as_spark_read_them(folder: Path) -> list[Batch]:
    """The records of each batch."""
    files = made_up(len(list((folder / "beats").glob("*.parquet"))))
    return [
        ([beat for n in beats for beat in files[n][0]], [temp for n in temps for temp in files[n][1]])
        for beats, temps in files_of_batches(folder / "base/clinic/checkpoint", len(files))
    ]


def expected(batches: Sequence[Batch]) -> Truth:
    return truth(batches, round(START.timestamp() * 1_000), PARTITIONS)


def write_input(folder: Path, files: int) -> None:
    for number, (beats, temperatures) in enumerate(made_up(files)):
        write(folder / "beats", number, [as_row(each) for each in beats], BEAT)
        write(folder / "temps", number, [as_row(each) for each in temperatures], TEMPERATURE)


def as_row(record: Beat | Temperature) -> dict[str, Any]:
    row = record._asdict()
    return {**row, "at": START + timedelta(milliseconds=row["at"])}


def build(app: hf.App, beats_frame: object, temps_frame: object, folder: Path) -> None:
    """The topology, of streaming DataFrames or of the records of a test driver."""
    beats = app.stream(beats_frame, key="patient", timestamp="at", name="beats")
    temps = app.stream(temps_frame, key="patient", timestamp="at", name="temps")
    windows = hf.tumbling(f"{WINDOW_S}s", grace=f"{GRACE_S}s")
    rates = beats.group_by().window(windows).aggregate(beats=hf.count(), sum=hf.sum("n")).store("rates", retention="1h")
    final = rates.final()
    final.sink(hf.files(str(folder / "final")))
    alerts = final.to_stream(key="patient").join(temps, within=within(), how="left", name="alerts")
    alerts.sink(hf.files(str(folder / "alerts")))
    warmest = temps.group_by().aggregate(warmest=hf.max("tenths")).store("warmest")
    joined = beats.join(warmest, how="left", name="with-warmest")
    ledger = joined.to_stream().process(Ledger, output="patient string, amount bigint")
    ledger.sink(hf.files(str(folder / "ledger")))


def on_spark(folder: Path) -> hf.App:
    app = crashing("clinic", folder, batch=hf.BatchSettings(idle_after="1h"))
    build(app, read(app.spark, folder / "beats", BEATS), read(app.spark, folder / "temps", TEMPS), folder)
    return app


def wait_for_the_last_punctuation(app: hf.App, true: Truth) -> None:
    """The driver makes the last version on its own: it closes what the last batch has let end."""
    deadline = time.monotonic() + 60
    while entries_of(app, "fired") != true.fired:
        assert time.monotonic() < deadline, f"{entries_of(app, 'fired')} instead of {true.fired}"
        time.sleep(0.05)


class Found(NamedTuple):
    """What an app has stored and sent."""

    stores: Mapping[str, Mapping[Any, Any]]
    outputs: Mapping[str, Sequence[Mapping[str, Any]]]

    def differences(self, true: Truth) -> list[str]:
        warmest = {patient: row["warmest"] for patient, row in self.stores["warmest"].items()}
        final = [(r["patient"], _millis(r["window_start"]), r["beats"], r["sum"]) for r in self.outputs["final"]]
        alerts = [(row["patient"], row["sum"], row["tenths"]) for row in self.outputs["alerts"]]
        paid: dict[str, int] = {}
        for row in self.outputs["ledger"]:
            paid[row["patient"]] = paid.get(row["patient"], 0) + row["amount"]
        found = {**self.stores, "warmest": warmest, "final": sorted(final), "alerts": sorted(alerts, key=repr)}
        expected = {**true._asdict(), "paid": true.booked}
        return [
            f"{name}: {value} instead of {expected[name]}"
            for name, value in {**found, "paid": paid}.items()
            if value != expected[name]
        ]


def _millis(moment: datetime) -> int:
    return round((moment - START).total_seconds() * 1_000)


def main(folder: Path) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    app = on_spark(folder)
    app.start()
    process_all(app)
    true = expected(as_spark_read_them(folder))
    wait_for_the_last_punctuation(app, true)
    stores = {name: entries_of(app, name) for name in STORES}
    app.stop()
    wrong = Found(stores, {name: delivered(folder / name) for name in OUTPUTS}).differences(true)
    print(json.dumps({"wrong": wrong, "version": app.version}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
