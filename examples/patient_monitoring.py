"""Patient monitoring: an alert when a patient's pulse and body temperature are both too high.

    .venv/bin/python examples/patient_monitoring.py

Heartbeats are counted per minute, with 5 seconds of grace for late ones. When a minute is over, its final count is
joined with the temperatures that were measured within a minute of it.

    beats         ●●● ●●●●●● ●●●|●●● ●●●●●  ●|●●        one record per heartbeat
    per minute                  └─ 110        └─ 90      one row per patient when the minute is over
    temperature       37.9   39.1        38.8            one record per measurement
    alerts                      └─ 110 and 39.1
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf

data = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data"
spark = SparkSession.builder.master("local[2]").appName("patients").getOrCreate()
beats = spark.readStream.schema("patient string, at timestamp").json(str(data / "pulse"))
measured = spark.readStream.schema("patient string, celsius double, at timestamp").json(str(data / "temperature"))

app = hf.App("patients")
pulse = app.stream(beats, key="patient", timestamp="at", name="pulse")
temperature = app.stream(measured, key="patient", timestamp="at", name="temperature")

per_minute = (
    pulse.group_by()
    .window(hf.tumbling("60s", grace="5s"))
    .aggregate(beats=hf.count())
    .store("pulse-per-minute", retention="6h")  # GET /v1/stores/pulse-per-minute/windows/ann
)
too_fast = per_minute.final().to_stream(key="patient").where("beats > 100")
too_warm = temperature.where("celsius > 38.5").select("patient", "celsius", "at")
alerts = hf.memory()
too_fast.join(too_warm, within=hf.join_window("60s", grace="5s"), name="alerts").sink(alerts)

if __name__ == "__main__":
    with app:
        app.process_all_available()
        while not alerts.rows():  # the last window closes a second after the last record
            time.sleep(0.1)
    for row in alerts.rows():
        print(f"{row['patient']}: {row['beats']} beats per minute and {row['celsius']} °C")
    # prints ann: 110 beats per minute and 39.1 °C
