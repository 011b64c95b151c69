"""An instance as a process: how it starts and ends.

It says where it listens in one line of JSON as soon as it does, which is before its tasks are restored. It ends on
SIGTERM, when asked to, and when the process that started it is gone: then its standard input closes, unless a child
that was forked by that process holds it, and its parent changes.
Ending takes less than five seconds whatever is under way, because nothing has to be finished: the log has everything. A
server first hands its tasks over, for `group.drain_timeout` at most.
It ends at once then, also after an error. Threads of gRPC, Arrow and RocksDB still run, and one that calls Python while
the interpreter ends aborts the process: its exit code would be that of a signal.
"""

import logging
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn, Protocol

import msgspec

from holdfast import faults
from holdfast.clock import SYSTEM_CLOCK
from holdfast.instance.config import InstanceConfig, Role
from holdfast.instance.instance import Instance
from holdfast.instance.memory import give_back_freed_memory
from holdfast.instance.systemd import notify
from holdfast.lasting import lasting_thread

_STANDARD_INPUT, _STANDARD_OUTPUT = 0, 1
_STOPS = (signal.SIGTERM, signal.SIGINT)
_LOOK_MILLIS = 500
_LOG = logging.getLogger(__name__)
_SWITCH_SECONDS = 0.0005
"""How long a thread may keep Python's lock when another wants it. With Python's own 5 ms a lookup during a flush waits
for many such turns."""


def allow_many_files() -> None:
    """Lets this process open as many files as the system allows: each task has a database, each client a connection.

    The usual limit of 1,024 is for programs that use `select`. 64 tasks with little state have 588 files open.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Companion(Protocol):
    """Something that runs as long as the service does, such as REST."""

    def addresses(self) -> Mapping[str, str]:
        """What to add to the line that says where the instance listens."""

    def start(self) -> None:
        """Answers from now on. Until then, clients that connect wait."""

    def stop(self) -> None: ...


class InGroup(Protocol):
    """The instance in its group."""

    def drain(self, seconds: float) -> None: ...

    def stop(self) -> None: ...


def main(
    config: InstanceConfig,
    companion: Callable[[Instance], Companion] | None = None,
    join: Callable[[Instance, str | None], InGroup] | None = None,
) -> None:
    """Runs an instance until it is asked to end, then ends the process."""
    faults.load_from_environment("instance")
    give_back_freed_memory()
    allow_many_files()
    sys.setswitchinterval(_SWITCH_SECONDS)
    instance = Instance(config)
    call_on_signals(instance.request_stop)
    instance.start()
    running, member = None, None
    code = 1
    try:
        running = None if companion is None else companion(instance)
        addresses = {"flight": instance.address, **({} if running is None else running.addresses())}
        line = {"name": config.name, "pid": os.getpid(), **addresses}
        member = None if join is None else join(instance, addresses.get("rest"))
        if running is not None:
            running.start()  # now it knows who has which task: before, it could answer nobody
        say_ready(config, line)
        notify("READY=1", f"STATUS=serves at {instance.address}")
        if config.embedded:
            lasting_thread("parent", partial(_watch_parent, instance, config.parent)).start()
        instance.wait_for_stop()
        notify("STOPPING=1")
        if member is not None and not config.embedded and instance.failure is None:
            _hand_over(instance, member)
        code = 0 if instance.failure is None else 1
    finally:
        # A thread that hangs must not keep the process: unfinished work is done again from the log.
        late = threading.Timer(config.stop_seconds * 0.9, os._exit, (code,))  # noqa: TID251  see holdfast.clock
        late.daemon = True
        late.start()
        if member is not None:
            member.stop()
        if running is not None:
            running.stop()
        instance.stop()
    if instance.failure is not None:
        raise instance.failure
    end(0)


def end(code: int) -> NoReturn:
    """Ends the process now."""
    logging.shutdown()
    os._exit(code)


def _hand_over(instance: Instance, member: InGroup) -> None:
    """Hands the tasks over, and says so: an operator who watches a restart wants to know what it waits for."""
    timeout = instance.config.group.drain_timeout.total_seconds()
    before = _active(instance)
    _LOG.info("told to end: hands its active tasks (%d) over, for at most %.0f s", before, timeout)
    began = SYSTEM_CLOCK.monotonic()
    member.drain(timeout)
    left = _active(instance)
    took = SYSTEM_CLOCK.monotonic() - began
    if left:
        _LOG.warning("ends after %.1f s with active tasks (%d) that no other instance has taken over", took, left)
    else:
        _LOG.info("ends after %.1f s: the others have its tasks", took)


def _active(instance: Instance) -> int:
    return sum(hosted.role is Role.ACTIVE for hosted in instance.hosted())


def call_on_signals(request_stop: Callable[[], None]) -> None:
    """Calls `request_stop` on SIGTERM or SIGINT, on a thread of its own.

    A handler in Python can't: it runs on the main thread between any two steps, so also inside the wait for that very
    request, and would then wait for the lock that its own thread has. The system's handler only writes to a pipe.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in _STOPS:
        signal.signal(number, lambda *_: None)
    lasting_thread("signals", partial(_wait_for_signal, reading, request_stop)).start()


def _wait_for_signal(reading: int, request_stop: Callable[[], None]) -> None:
    while os.read(reading, 1)[0] not in _STOPS:
        pass  # a user's module may have handlers for other signals
    request_stop()


def say_ready(config: InstanceConfig, line: Mapping[str, object]) -> None:
    """Tells the process that started this one where it listens, or why it doesn't. Said once."""
    with open(config.ready_fd, "wb", closefd=config.ready_fd != _STANDARD_OUTPUT) as ready:
        ready.write(msgspec.json.encode(line) + b"\n")


def _watch_parent(instance: Instance, parent: int) -> None:
    """Waits until the process that started this one is gone."""
    readable = select.poll()
    readable.register(_STANDARD_INPUT, select.POLLIN)
    while parent in (0, os.getppid()):
        if readable.poll(_LOOK_MILLIS) and not os.read(_STANDARD_INPUT, 4096):
            break
    _LOG.info("the process that started this instance is gone, so it ends")
    instance.request_stop()
