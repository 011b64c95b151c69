"""Fault points: named places where a crash test ends the process, or makes a call fail.

A point is one call, `faults.point("commit.before")`. With no fault set, which is always so outside of tests, it is a
comparison with an empty dict. A test names its fault in the environment, so that it reaches every process of the app:

    HOLDFAST_FAULT="commit.before=kill@3"       kill -9 of the process that reaches the point for the third time
    HOLDFAST_FAULT="segment.after=raise@1"      an InjectedFault there, once
    HOLDFAST_FAULT="segment.after=driver@2"     kill -9 of the driver when this process gets there (or instance, worker)
    HOLDFAST_FAULT="state.read=executor@1"      kill -9 of the JVM this Python worker belongs to
    HOLDFAST_FAULT_DIR=/some/folder             each fault fires once per folder, also over restarts of a process; here
                                                processes leave their ids, so that one can end another

In one process a test sets them with `with faults.active({"commit.before": handler}):`.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from holdfast.errors import ErrorCategory, HoldfastError

POINTS = (
    "segment.before",
    "segment.after",
    "commit.before",
    "commit.after",
    "sink.before",
    "sink.middle",
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
"""Every point there is; a test checks that each is reached by the code and hit by the crash matrix."""


ROLES = ("driver", "worker", "instance")


class InjectedFault(HoldfastError):
    """Raised on purpose by a test."""

    category = ErrorCategory.RETRY


class UnknownFaultPoint(HoldfastError):
    category = ErrorCategory.INVALID


Handler = Callable[[], None]
_active: dict[str, Handler] = {}


def point(name: str) -> None:
    """A place where a test may interfere. Costs a look at an empty dict when none does."""
    if _active and (handler := _active.get(name)) is not None:
        handler()


@contextlib.contextmanager
def active(handlers: Mapping[str, Handler]) -> Iterator[None]:
    """Sets faults in this process for the length of a block."""
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
        _active[_checked(name)] = _handler(name, verb, int(nth or 1), folder)


def _checked(name: str) -> str:
    if name not in POINTS:
        raise UnknownFaultPoint(f"{name!r} is no fault point. The points are {', '.join(POINTS)}.")
    return name


def _handler(name: str, verb: str, nth: int, folder: Path | None) -> Handler:
    reached = 0

    def handle() -> None:
        nonlocal reached
        reached += 1
        if reached < nth or not _first_time(folder, name):
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
    """Kills the JVM that this Python worker belongs to; between the two is Spark's daemon, which forks workers."""
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
