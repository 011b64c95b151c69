"""Patient monitoring: an alert when a patient's pulse and body temperature are both too high.

    .venv/bin/python examples/patient_monitoring.py   # reads examples/data/pulse and temperature, and ends

Heartbeats are counted per minute, with 5 seconds of grace for late ones. When a minute ends, its final count is joined
with the temperatures that were measured within a minute of it. The join has an hour of grace: a final count comes after
its minute, and after a pause a batch may span that long.

    beats         ●●● ●●●●●● ●●●|●●● ●●●●●  ●|●●        one record per heartbeat
    per minute                  └─ 110        └─ 90      one row per patient when the minute ends
    temperature       37.9   39.1        38.8            one record per measurement
    alerts                      └─ 110 and 39.1, 110 and 38.8
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf

DATA = Path(__file__).parent / "data"
PULSE = "patient string, at timestamp"
TEMPERATURE = "patient string, celsius double, at timestamp"


def build(app: hf.App, pulse: Any, temperature: Any) -> hf.Joined:
    """The topology, of streaming DataFrames or of the records of a test."""
    per_minute = (
        app.stream(pulse, key="patient", timestamp="at", name="pulse")
        .group_by()
        .window(hf.tumbling("60s", grace="5s"))
        .aggregate(beats=hf.count())
        .store("pulse-per-minute", retention="6h")  # GET /v1/stores/pulse-per-minute/windows/ann
    )
    too_fast = per_minute.final().to_stream(key="patient").where("beats > 100")
    measured = app.stream(temperature, key="patient", timestamp="at", name="temperature")
    too_warm = measured.where("celsius > 38.5").select("patient", "celsius", "at")
    return too_fast.join(too_warm, within=hf.join_window("60s", grace="1h"), name="alerts")


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    pulse = spark.readStream.schema(PULSE).json(str(DATA / "pulse"))
    temperature = spark.readStream.schema(TEMPERATURE).json(str(DATA / "temperature"))
    with tempfile.TemporaryDirectory() as folder:
        app = hf.App("patients", settings=hf.Settings(base_dir=folder), spark=spark)
        alerts = hf.memory()
        build(app, pulse, temperature).sink(alerts)
        with app:
            app.process_all_available()
            while not alerts.rows():  # the last window closes a second after the last record
                time.sleep(0.1)
        for row in alerts.rows():
            print(f"{row['patient']}: {row['beats']} beats per minute and {row['celsius']} °C")


if __name__ == "__main__":
    main()
