"""Shared by all tests: one Spark session per run, folders in memory, small disks, hypothesis without deadlines."""

import gc
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from py4j.java_gateway import JavaPackage, JVMView
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tests import class_archive, forking
from tests.apps import INTERPRETED

# Test machines vary in speed, so a slow example is not a failure. `make crash` tries 25 times as many
# examples of each property.
_ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("holdfast", _ANY_SPEED, max_examples=20)
settings.register_profile("thorough", _ANY_SPEED, max_examples=500)
settings.load_profile("holdfast")

os.environ.setdefault("JDK_JAVA_OPTIONS", class_archive.java_options())

# Terminals of tests are in memory, and can do what usual ones can, whatever the tests are started from.
os.environ["TERM"] = "xterm"

# pytest adds its handlers to each logger that doesn't propagate, which PySpark's are, and PySpark would have them write
# JSON from then on: `caplog.text` of any test after an error of PySpark.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[assignment, method-assign]

# Tests' folders are in memory if there is room: two thirds of the time of a crash matrix went into fsync, which makes
# no difference to a killed process.
_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30
if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the tests for several workers, each of which starts with a part of the list and then takes from others'.

    Tests with the Spark session come first in two of the parts, since a session takes 14 s of processor time to start.
    Tests that start a JVM of their own come first in the last part: none of them may be left to the end.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = _in_parts(items, workers)


def _in_parts(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    with_session = [item for item in items if "spark" in getattr(item, "fixturenames", ())]
    programs = [item for item in items if item.get_closest_marker("spark") and item not in with_session]
    half = math.ceil(len(with_session) / 2)
    modules = [item.path for item in with_session]
    while 0 < half < len(modules) and modules[half] == modules[half - 1]:
        half += 1  # a module stays whole
    first = [with_session[:half], with_session[half:], *([] for _ in range(workers - 2))]
    first[-1] = programs + first[-1]
    apart = {*with_session, *programs}
    rest = iter([item for item in items if item not in apart])
    ordered: list[pytest.Item] = []
    for number, part in enumerate(first):
        size = (len(items) - len(ordered)) // (workers - number)  # as the scheduler of --dist=worksteal cuts the list
        ordered += [*part, *islice(rest, max(0, size - len(part)))]
    return [*ordered, *rest]


def pytest_collection_finish() -> None:
    """Keeps loaded modules out of garbage collections, each of which takes over a second with them."""
    gc.freeze()


# Spark sizes the pages of hash tables and sort buffers by
# the heap: after two tests 940 MB of it were arrays, and collections took an eighth of the JVM's time.
_SHORT_PLANS: dict[str, bool | float | int | str | None] = {
    **INTERPRETED,
    "spark.buffer.pageSize": "1m",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.ui.retainedJobs": "1",
    "spark.ui.retainedStages": "1",
    "spark.ui.retainedTasks": "1",
}


def _remember_java_names() -> None:
    """Keeps what py4j finds out about the parts of names such as `jvm.org.apache.spark`.

    It asks the JVM each time, which then looks for a class of that name in all 279 files of Spark: a tenth of the
    JVM's time.
    """
    for owner in (JVMView, JavaPackage):

        def remembered(self: Any, name: str, ask: Callable[[Any, str], Any] = owner.__getattr__) -> Any:
            found = self.__dict__[name] = ask(self, name)
            return found

        owner.__getattr__ = remembered


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A real local Spark, started once for all tests."""
    _remember_java_names()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.daemon.module", "tests.spark_daemon")
        .config("spark.python.unix.domain.socket.enabled", "true")  # as in sessions that an app creates
        .config(map=_SHORT_PLANS)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def compiled_plans(spark: SparkSession) -> Iterator[None]:
    """Spark compiles plans, as it does for users: for tests in which it matters when an expression is computed."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="session", autouse=True)
def forked_programs() -> Iterator[None]:
    """Instances and small programs start by a fork (tests/forking.py)."""
    forking.install()
    yield
    forking.uninstall()


@pytest.fixture
def without_forks() -> Iterator[None]:
    """Programs start as users start them: for tests of what they import, of their limits and of their command line."""
    forking.pause(True)
    yield
    forking.pause(False)


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, as large as the test's parameter says, for example 3m."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small tmpfs can't be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
