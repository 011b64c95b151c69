"""Fault points: named places where a crash test kills the process or makes a call fail.

A point is one call, `faults.point("commit.before")`. If no fault is set, which is always so outside of tests, it only
checks an empty dict. A test sets its fault in the environment, so that every process of the app sees it:

    HOLDFAST_FAULT="commit.before=kill@3"       kill -9 of the process that reaches the point for the third time
    HOLDFAST_FAULT="segment.after=raise@1"      raises InjectedFault there, once
    HOLDFAST_FAULT="segment.after=driver@2"     kill -9 of the driver when this process is there (or instance, worker)
    HOLDFAST_FAULT="state.read=executor@1"      kill -9 of the JVM this Python worker belongs to
    HOLDFAST_FAULT="...,sink.after=kill@4:last" the process waits at the point until all other faults have happened
    HOLDFAST_FAULT_DIR=/some/folder             each fault fires once per folder, even if processes restart; processes
                                                write their ids here, so that one can kill another

In one process a test sets them with `with faults.active({"commit.before": handler}):`.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import ErrorCategory, HoldfastError

POINTS = (
    "segment.before",
    "segment.after",
    "segment.together",
    "commit.before",
    "commit.middle",
    "commit.after",
    "sink.before",
    "sink.after",
    "apply.before",
    "apply.middle",
    "apply.after",
    "drop.before",
    "drop.after",
    "snapshot.before",
    "snapshot.middle",
    "snapshot.after",
    "clean.before",
    "clean.middle",
    "clean.after",
    "state.read",
)
"""All points. A test checks that the code reaches every one and that the crash matrix covers it."""


ROLES = ("driver", "worker", "instance")
_LOOK_SECONDS, _MOST_SECONDS = 0.02, 60.0
"""How often a process looks whether the other faults have happened, and how long it waits for them."""


class InjectedFault(HoldfastError):
    """Raised on purpose by a test."""

    category = ErrorCategory.RETRY


class UnknownFaultPoint(HoldfastError):
    category = ErrorCategory.INVALID


Handler = Callable[[], None]
_active: dict[str, Handler] = {}


def point(name: str) -> None:
    """A place where a test may inject a fault. Otherwise it only checks an empty dict."""
    if _active and (handler := _active.get(name)) is not None:
        handler()


@contextlib.contextmanager
def active(handlers: Mapping[str, Handler]) -> Iterator[None]:
    """Sets faults in this process for the duration of a `with` block."""
    before = dict(_active)
    _active.update({_checked(name): handler for name, handler in handlers.items()})
    try:
        yield
    finally:
        _active.clear()
        _active.update(before)


def load_from_environment(role: str) -> None:
    """Reads HOLDFAST_FAULT; every process of an app calls this once at its start, as driver, worker or instance."""
    text = os.environ.get("HOLDFAST_FAULT", "")
    if not text:
        return
    named = os.environ.get("HOLDFAST_FAULT_DIR")
    folder = Path(named) if named else None
    if folder is not None:
        (folder / f"{role}.pid").write_text(str(os.getpid()))
    for part in filter(None, text.split(",")):
        name, _, action = part.partition("=")
        verb, _, nth = action.partition("@")
        nth, _, last = nth.partition(":")
        others = wanted() - {name} if last else set()
        _active[_checked(name)] = _handler(name, verb, int(nth or 1), folder, others)


def _checked(name: str) -> str:
    if name not in POINTS:
        raise UnknownFaultPoint(f"{name!r} is not a fault point. The points are {', '.join(POINTS)}.")
    return name


def wanted() -> set[str]:
    """The points that HOLDFAST_FAULT names."""
    return {part.partition("=")[0] for part in os.environ.get("HOLDFAST_FAULT", "").split(",") if part}


def wait_for(points: Collection[str], folder: Path) -> None:
    """Waits until faults have happened at all of these points. A test tells which of them never did."""
    until = SYSTEM_CLOCK.monotonic() + _MOST_SECONDS
    while not all((folder / f"{point}.fired").exists() for point in points) and SYSTEM_CLOCK.monotonic() < until:
        SYSTEM_CLOCK.sleep(_LOOK_SECONDS)


def _handler(name: str, verb: str, nth: int, folder: Path | None, others: Collection[str]) -> Handler:
    reached = 0

    def handle() -> None:
        nonlocal reached
        reached += 1
        if reached < nth:
            return
        if folder is not None:
            wait_for(others, folder)
        if not _first_time(folder, name):
            return
        if verb == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "executor":
            _kill_executor()
            return
        if verb in ROLES and folder is not None:
            os.kill(int((folder / f"{verb}.pid").read_text()), signal.SIGKILL)
            return
        raise InjectedFault(f"fault injected at {name} in process {os.getpid()}")

    return handle


def _kill_executor() -> None:
    """Kills the JVM of this Python worker. It is the parent of Spark's daemon, which forks the workers."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)


def _first_time(folder: Path | None, name: str) -> bool:
    if folder is None:
        return True
    try:
        (folder / f"{name}.fired").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
