"""The processes of an app on this machine, read from /proc: which there are, their memory and open files."""

import os
import signal
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """A process's children and theirs: process id → command line."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if (parent := _parent(folder)) is not None:
            parents.setdefault(parent, []).append(int(folder.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            waiting.append(child)
            found[child] = _command(child)
    return found


def _parent(folder: Path) -> int | None:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def of_kind(pid: int, kind: str) -> list[int]:
    """The app's processes of a kind: `driver`, `jvm`, `instance` or `worker`."""
    if kind == "driver":
        return [pid]
    marks = {"jvm": "java", "instance": "holdfast instance", "worker": "-m holdfast.spark_daemon"}
    return [child for child, command in descendants(pid).items() if marks[kind] in command]


def open_files(pids: list[int]) -> int:
    """How many files, sockets and pipes these processes have open."""
    found = 0
    for pid in pids:
        try:
            found += len(os.listdir(f"/proc/{pid}/fd"))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def kill(pid: int) -> bool:
    """Kills a process; False if it had ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def resident_mib(pids: list[int]) -> float:
    """The resident memory of these processes."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
