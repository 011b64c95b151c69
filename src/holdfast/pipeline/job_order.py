"""In which order the jobs of a version run: each after those it depends on, and several at once where it may.

A job's DataFrames are planned under a lock, since planners set options of the one Spark session. Jobs themselves run
side by side: one that waits for its last task, or for the driver, leaves cores to others.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

Job = Callable[[str], bool]
"""Runs the job of this name; False if no further one may run."""

_planning = threading.Lock()


@contextlib.contextmanager
def planning() -> Iterator[None]:
    """Around everything that makes a plan or sets options of the session."""
    with _planning:
        yield


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Around a job inside `planning`: others may plan meanwhile."""
    _planning.release()
    try:
        yield
    finally:
        _planning.acquire()


def run_in_order(dependencies: Mapping[str, Collection[str]], run: Job, in_thread: Callable[[Job], Job]) -> None:
    """Runs each job after those it depends on. Where one raises or answers False, no further job is started.

    Jobs under way are waited for in any case, since they write segments. `in_thread` prepares a job for other threads.
    """
    order = TopologicalSorter(dependencies)
    order.prepare()
    started: dict[Future[bool], str] = {}
    go_on = True
    with ThreadPoolExecutor(max_workers=len(dependencies) or 1, thread_name_prefix="holdfast-job") as pool:
        while go_on and order.is_active():
            ready = order.get_ready()
            if len(ready) == 1 and not started:  # as in most apps: no thread is needed
                go_on = run(ready[0])
                order.done(ready[0])
                continue
            started |= {pool.submit(in_thread(run), name): name for name in ready}
            for future in wait(started, return_when=FIRST_COMPLETED).done:
                go_on = future.result() and go_on
                order.done(started.pop(future))


def with_session(session: SparkSession) -> Callable[[Job], Job]:
    """Lets a job run in another thread as in this one: with its local properties and active session."""

    def prepared(run: Job) -> Job:
        def in_thread(name: str) -> bool:
            jvm = session._jvm
            assert jvm is not None
            jvm.SparkSession.setActiveSession(session._jsparkSession)
            return run(name)

        inherited: Job = inheritable_thread_target(session)(in_thread)
        return inherited

    return prepared
