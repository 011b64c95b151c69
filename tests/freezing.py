"""Freezes processes, as a machine that swaps does.

SIGSTOP is asynchronous: `os.kill` returns before all threads of the process have stopped, and one that still runs may
answer another request.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_SECONDS = 10.0


def freeze(pid: int) -> None:
    """Returns when no thread of the process runs any more."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + WAIT_SECONDS
    while any(_is_running(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Process {pid} still runs {WAIT_SECONDS:g} s after SIGSTOP.")
        time.sleep(0.001)


def wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process is frozen within the block."""
    freeze(pid)
    try:
        yield
    finally:
        wake(pid)


def _is_running(thread: Path) -> bool:
    """Whether a thread is neither stopped nor ended. Its state comes after its name, which may have any characters."""
    try:
        state = (thread / "stat").read_text().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
    return state not in "TtZX"
