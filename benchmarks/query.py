"""Lookups of single keys over REST: how many per second, and how long they take while records are ingested.

A real app counts records by 500,000 string keys in one instance. `wrk` asks for random keys over 16 connections as fast
as it is answered. Latency is measured at 500 lookups per second by a generator in a process of its own that counts from
when a request was due, so that a request which waits behind a slow one counts too. That process leads a session of its
own, as on another machine: Linux shares a processor between sessions, and in Spark's it would wait behind Spark's
threads. It is measured three times: while the source is quiet, while 50,000 records per second are ingested, and while
the app ingests as fast as it can, each after some batches, in which the JVM compiles what it runs. The processor time
per lookup is that of the instance, which other load changes less than the rate.

Reported next to it: requests for 100 keys and for ranges of 100; with a second instance, lookups that the other one
answers, and ranges of both; and what 200 connections get, and how long lookups take after them.
"""

import argparse
import http.client
import multiprocessing
import os
import queue
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf
from benchmarks.common import FSYNC, PARTITIONS, finish, plot_lines, scratch, show, spark_session
from benchmarks.idle import processor_seconds

KEYS = 500_000
CONNECTIONS = 16
LOOKUPS_PER_SECOND = 500
INGESTED_PER_SECOND = 50_000
FILES_PER_SECOND = 10
FILES = 20
"""How many files a batch has at most."""
MORE_THAN_ANY_APP = 100.0
"""Files of 50,000 records per second."""
STEADY, FULL = "ingesting 50,000 records/s", "ingesting all it can"
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
_INSTANCE = b"holdfast\0instance"
"""In the command line of an instance."""
_PATH = "/v1/stores/counts/keys/user-{:06d}"
_BEGINNING = """
math.randomseed(os.time())
local function key() return string.format("user-%06d", math.random(0, {last})) end
"""
LOOKUP = """
request = function() return wrk.format("GET", "/v1/stores/counts/keys/" .. key()) end
"""
BATCH = """
local headers = {["Content-Type"] = "application/json"}
request = function()
  local keys = {}
  for n = 1, 100 do keys[n] = '"' .. key() .. '"' end
  return wrk.format("POST", "/v1/stores/counts/keys", headers, "[" .. table.concat(keys, ",") .. "]")
end
"""
RANGE = """
request = function() return wrk.format("GET", "/v1/stores/counts/range?limit=100&from=" .. key()) end
"""
CHOSEN = """
local keys = {chosen}
request = function() return wrk.format("GET", "/v1/stores/counts/keys/" .. keys[math.random(#keys)]) end
"""
OVERLOAD = 200
"""Connections."""
REFUSED = (
    LOOKUP
    + """
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init() refused = 0; failed = 0 end
function response(status)
  if status == 429 or status == 503 then refused = refused + 1 elseif status ~= 200 then failed = failed + 1 end
end
function done()
  local all = {refused = 0, failed = 0}
  for _, thread in ipairs(threads) do
    for name, count in pairs(all) do all[name] = count + thread:get(name) end
  end
  print("refused " .. all.refused .. ", failed " .. all.failed)
end
"""
)
WARM_BATCHES = 60
"""How many batches there are before lookups are measured."""


@dataclass(frozen=True)
class Peak:
    """What wrk measured, and the processor time of the instance per request."""

    per_second: float
    p99_ms: float
    cpu_us: float
    refused: int = 0


def write_records(path: Path, numbers: npt.NDArray[np.int64]) -> None:
    """Writes a file of records with these keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 6, "0")
    pq.write_table(pa.table({"key": pc.binary_join_element_wise("user-", digits, "")}), path)


def instance_seconds(before: dict[int, float]) -> float:
    """The processor time of the app's instance since then."""
    now = processor_seconds()
    return sum(now[pid] - before.get(pid, 0.0) for pid in now if _INSTANCE in _command(pid))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def peak(address: str, folder: Path, seconds: int, script: str = LOOKUP, connections: int = CONNECTIONS) -> Peak:
    """The highest rate over some connections. Only requests of `REFUSED` may be refused, and none may fail."""
    file = folder / "requests.lua"
    file.write_text(_BEGINNING.replace("{last}", str(KEYS - 1)) + script)
    before = processor_seconds()
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}", "--latency", "-s", str(file), address]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    refused = re.search(r"refused (\d+), failed 0\n", text)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)|Socket errors: .*", text)
    if failed and (refused is None or failed[1] is None):
        raise SystemExit(f"{failed[0]}: every request should be answered, or refused with 429 or 503\n{text}")
    requests = int(_found(r"(\d+) requests in", text)[1])
    p99 = _found(r"99%\s+([\d.]+)(us|ms|s)", text)
    rate = float(_found(r"Requests/sec:\s+([\d.]+)", text)[1])
    cpu = instance_seconds(before) / requests * 1e6
    return Peak(rate, float(p99[1]) * _UNITS[p99[2]], cpu, int(refused[1]) if refused else 0)


def _found(pattern: str, text: str) -> re.Match[str]:
    match = re.search(pattern, text)
    assert match is not None, text
    return match


def open_loop(address: str, seconds: float, results: "multiprocessing.Queue[list[float]]") -> None:
    """Sends lookups when they are due, whatever happened to earlier ones, and returns their milliseconds."""
    os.setsid()
    parts = urlsplit(address)
    numbers = np.random.default_rng(1).integers(0, KEYS, int(LOOKUPS_PER_SECOND * seconds)).tolist()
    due: queue.SimpleQueue[tuple[float, int] | None] = queue.SimpleQueue()
    taken: list[float] = []

    def ask() -> None:
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        while (next_one := due.get()) is not None:
            at, number = next_one
            connection.request("GET", _PATH.format(number))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            taken.append((time.monotonic() - at) * 1000)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    for n, number in enumerate(numbers):
        at = began + n / LOOKUPS_PER_SECOND
        time.sleep(max(0.0, at - time.monotonic()))
        due.put((at, number))
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    results.put(taken)


def latencies(address: str, seconds: float) -> list[float]:
    """The milliseconds of lookups from another process, so that this one's threads don't delay them."""
    spawn = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[list[float]] = spawn.Queue()
    process = spawn.Process(target=open_loop, args=(address, seconds, results))
    process.start()
    taken = results.get(timeout=seconds + 300)
    process.join()
    asked = int(LOOKUPS_PER_SECOND * seconds)
    assert len(taken) == asked, f"{asked - len(taken)} of {asked} lookups failed"
    return taken


def elsewhere(address: str, number: int = 2_000) -> list[str]:
    """Keys that another instance answers."""
    with httpx2.Client(base_url=address) as client:
        own = client.get("/v1/state").json()["instance"]
        keys = [f"user-{n:06d}" for n in range(0, KEYS, KEYS // number)]
        return [key for key in keys if client.get(f"/v1/stores/counts/keys/{key}").json()["instance"] != own]


def counting(spark: SparkSession, folder: Path, records: Path, instances: int) -> hf.App:
    """An app that counts the records by key."""
    settings = hf.Settings(
        base_dir=str(folder / f"base-{instances}"),
        partitions=PARTITIONS,
        instances=instances,
        rest=hf.RestSettings(port=0),
        log=hf.LogSettings(fsync=FSYNC),
    )
    app = hf.App("query", settings=settings, spark=spark)
    source = spark.readStream.schema("key string").option("maxFilesPerTrigger", FILES).parquet(str(records))
    app.stream(source, key="key").group_by().count().store("counts")
    return app


def prepared(folder: Path, records: int) -> list[Path]:
    """Files with this many records of random keys, outside of the source's folder."""
    files = [folder / f"{records}-{n}.parquet" for n in range(FILES)]
    for n, path in enumerate(files):
        write_records(path, np.random.default_rng(n).integers(0, KEYS, records))
    return files


@contextmanager
def ingesting(files: Sequence[Path], source: Path, files_per_second: float) -> Iterator[None]:
    """Adds these files to the source again and again, as links: this process does nothing else meanwhile."""
    stop = threading.Event()

    def add() -> None:
        began, n = time.monotonic(), 0
        while not stop.wait(max(0.0, began + n / files_per_second - time.monotonic())):
            os.link(files[n % len(files)], source / f"{files[0].stem}-{n:06d}.parquet")
            n += 1

    thread = threading.Thread(target=add)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def processed(app: hf.App) -> int:
    """How many records the app has processed."""
    return sum(each["numInputRows"] for each in app.query.recentProgress)


def batches(app: hf.App) -> int:
    """How many batches the app has run."""
    return 0 if (last := app.query.lastProgress) is None else int(last["batchId"])


def under_load(app: hf.App, address: str, seconds: int) -> tuple[list[float], float]:
    """The milliseconds of lookups, and the records per second that the app processed meanwhile."""
    first = batches(app)
    while batches(app) < first + WARM_BATCHES:
        time.sleep(0.1)
    before, began = processed(app), time.monotonic()
    taken = latencies(address, seconds)
    return taken, (processed(app) - before) / (time.monotonic() - began)


def p99(taken: Sequence[float]) -> float:
    return float(np.percentile(taken, 99))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="10 seconds per measurement")
    quick = parser.parse_args().quick
    if shutil.which("wrk") is None:
        raise SystemExit("This needs wrk. Install it, on Debian with: apt-get install wrk")
    seconds = 10 if quick else 60
    spark = spark_session(**{"spark.sql.streaming.numRecentProgressUpdates": "100000"})
    with scratch("query") as folder:
        records = folder / "input"
        write_records(records / "first.parquet", np.arange(KEYS))
        small = prepared(folder / "prepared", INGESTED_PER_SECOND // FILES_PER_SECOND)
        large = prepared(folder / "prepared", 50_000)
        app = counting(spark, folder, records, instances=1)
        with app:
            app.process_all_available()
            assert app.address is not None
            peak(app.address, folder, 3)  # warm
            highest = peak(app.address, folder, seconds)
            peaks = {
                "100 keys": peak(app.address, folder, seconds // 2, BATCH),
                "a range of 100": peak(app.address, folder, seconds // 2, RANGE),
            }
            taken, rates = {"quiet": latencies(app.address, seconds)}, {"quiet": 0.0}
            with ingesting(small, records, FILES_PER_SECOND):
                taken[STEADY], rates[STEADY] = under_load(app, app.address, seconds)
            app.process_all_available()
            shed = peak(app.address, folder, seconds // 2, REFUSED, OVERLOAD)
            recovered = p99(latencies(app.address, seconds // 2))
            with ingesting(large, records, MORE_THAN_ANY_APP):
                taken[FULL], rates[FULL] = under_load(app, app.address, seconds)
        (folder / "two").mkdir()
        os.link(records / "first.parquet", folder / "two" / "first.parquet")
        with counting(spark, folder, folder / "two", instances=2) as app:
            app.process_all_available()
            address = app.addresses[0]
            routed = CHOSEN.replace("chosen", ",".join(f'"{key}"' for key in elsewhere(address)))
            peaks["one key of another instance"] = peak(address, folder, seconds // 2, routed)
            peaks["a range of 100 of two instances"] = peak(address, folder, seconds // 2, RANGE)
    spark.stop()
    show(
        f"requests over {CONNECTIONS} connections, as many as are answered",
        ["for", "per second", "p99 ms", "us of processor time"],
        [
            [name, each.per_second, each.p99_ms, each.cpu_us]
            for name, each in {"one key": highest, **peaks, f"one key, {OVERLOAD} connections": shed}.items()
        ],
    )
    show(
        f"lookups of {KEYS:,} keys, {LOOKUPS_PER_SECOND} per second, ms from when they were due",
        ["the app is", "records/s", "p50", "p99", "most"],
        [[name, rates[name], float(np.median(each)), p99(each), max(each)] for name, each in taken.items()],
    )
    lines = {name: [float(np.percentile(each, n)) for n in range(1, 101)] for name, each in taken.items()}
    plot_lines("query", "lookups of single keys", lines, "percentile", "ms from when it was due")
    finish(
        idle_per_s=highest.per_second,
        idle_p99_ms=highest.p99_ms,
        idle_cpu_us=highest.cpu_us,
        quiet_p99_ms=p99(taken["quiet"]),
        ingest_p99_ms=p99(taken[STEADY]),
        ingest_records_per_s=rates[STEADY],
        full_speed_p99_ms=p99(taken[FULL]),
        full_speed_records_per_s=rates[FULL],
        batch_per_s=peaks["100 keys"].per_second,
        range_per_s=peaks["a range of 100"].per_second,
        routed_per_s=peaks["one key of another instance"].per_second,
        routed_p99_ms=peaks["one key of another instance"].p99_ms,
        scattered_per_s=peaks["a range of 100 of two instances"].per_second,
        overload_refused=shed.refused,
        after_overload_p99_ms=recovered,
        quick=quick,
    )


if __name__ == "__main__":
    main()
