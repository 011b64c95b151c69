"""Instances and small programs of tests are forked from a process that has imported what they import.

The tests start about 200 instances. Each would import pyarrow, RocksDB and holdfast again, which is most of the 0.45 s
of processor time that a start takes. `install` replaces `subprocess.Popen` in the tests' processes by `Popen`, which
asks `python -m tests.forking` for a fork if a program `can_be_forked`, and starts everything else as usual.

A forked program is a real process: a child of the test process, with its own environment, folder, session, standard
streams and exit code. It runs the same main function, and is killed as any other. It shares its command line in /proc
and imported modules with the process that it is forked from: a test that is about either has the fixture
`without_forks` of conftest.py. Programs that start instances themselves, such as the examples, never fork them.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast import lean

WANTED = (
    "holdfast.cli",
    "holdfast.instance_command",
    "holdfast.launching",
    "holdfast.serving",
    "holdfast.stores.engines.rocksdb",
    "obstore.store",
    "pyarrow.compute",
    "pyarrow.flight",
    "pyarrow.parquet",
    "rocksdict",
)
_LARGEST_REQUEST, _MOST_FILES = 1 << 18, 16
_FIRST_SPARE = 200
"""Above the numbers of all files of the process that is forked."""

_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


@dataclass(frozen=True)
class Request:
    """A program to start. Its files come along with the message, in the order of these numbers."""

    arguments: Sequence[str]
    files: Sequence[int]
    folder: str
    environment: Mapping[str, str]
    new_session: bool


def can_be_forked(arguments: Any) -> bool:
    """Whether a program imports little beyond `WANTED`, and neither pandas nor Spark."""
    if not isinstance(arguments, list | tuple) or len(arguments) < 2 or arguments[0] != sys.executable:
        return False
    first, *rest = map(str, arguments[1:])
    return (first == "-m" and (rest[:2] == ["holdfast", "instance"] or rest[:1] == ["tests.lean"])) or (
        Path(first).name == "run_instance.py"
    )


class Popen(subprocess.Popen[Any]):
    """Forks programs that can be forked, and starts others."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *more: Any) -> None:
        pass_fds, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = more[:12]
        if _forker is None or not can_be_forked(args):
            super()._execute_child(args, executable, preexec_fn, close_fds, *more)  # type: ignore[misc]
            return
        streams = [given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        request = Request(
            arguments=[str(argument) for argument in args[1:]],
            files=[0, 1, 2, *pass_fds],
            folder=str(cwd or os.getcwd()),
            environment=dict(os.environ if env is None else env),
            new_session=bool(more[17]),
        )
        self.pid = _forker.fork(request, [*streams, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


class _Forker:
    """The process that programs are forked from, as the test process sees it. It starts with the first program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self, request: Request, files: Sequence[int]) -> int:
        with self._lock:
            asked = self._socket or self._start()
            # The program's own parent ends at once: this process is then its next one, and only for now, because
            # tests look for what killed programs leave behind.
            _adopt_orphans(True)
            try:
                socket.send_fds(asked, [json.dumps(asdict(request)).encode()], list(files))
                pid = int(asked.recv(32))
                assert asked.recv(32) == b"adopted"
            finally:
                _adopt_orphans(False)
            return pid

    def _start(self) -> socket.socket:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(other.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            env=environment,
            start_new_session=True,  # Ctrl-C only reaches the tests, with which this process ends
        )
        other.close()
        return self._socket

    def stop(self) -> None:
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait(60)


def _adopt_orphans(yes: bool) -> None:
    """Makes this process the next parent of programs whose own one has ended, or no longer."""
    if ctypes.CDLL(None, use_errno=True).prctl(_CHILD_SUBREAPER, int(yes), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


_forker: _Forker | None = None


def install() -> None:
    """Lets this process fork programs from now on."""
    subprocess.Popen = Popen  # type: ignore[misc]
    pause(False)


def pause(paused: bool) -> None:
    """Starts programs as usual for a while."""
    global _forker
    _forker = None if paused else _one


_one = _Forker()


def uninstall() -> None:
    pause(True)
    _one.stop()


def serve(asked: socket.socket) -> tuple[Request, list[int]] | None:
    """Forks a program per request. Returns in each of them, and, with None, when no more requests can come."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, _LARGEST_REQUEST, _MOST_FILES)
        if not message:
            return None
        orphaned, held = os.pipe()
        if (between := os.fork()) == 0:
            if (program := os.fork()) == 0:
                os.close(held)
                os.read(orphaned, 1)  # ends when the process between has: the next parent is the test process
                return Request(**json.loads(message)), files
            asked.send(str(program).encode())
            os._exit(0)
        os.waitpid(between, 0)
        os.close(held)
        os.close(orphaned)
        asked.send(b"adopted")
        for file in files:
            os.close(file)


def become(request: Request, files: Sequence[int]) -> None:
    """Makes this process look like one that was started for the request."""
    spare = [os.dup2(file, max(_FIRST_SPARE, *request.files) + 1 + place) for place, file in enumerate(files)]
    for file, number in zip(spare, request.files, strict=True):
        os.dup2(file, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in request.files:
            with suppress(OSError):  # the folder that was listed
                os.close(int(name))
    if request.new_session:
        os.setsid()
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    beside = request.folder if request.arguments[0] == "-m" else str(Path(request.arguments[0]).parent)
    given = request.environment.get("PYTHONPATH", "").split(os.pathsep)
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [beside, *filter(None, given), *installed]
    importlib.invalidate_caches()


def run(arguments: Sequence[str]) -> None:
    """Runs a program as Python's command line would."""
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")


def main() -> None:
    # numpy's linear algebra and an allocator of Arrow's, which instances don't use, start threads.
    os.environ.update(OPENBLAS_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false")
    lean.share_one_allocator()
    lean.leave_pandas_out()
    for name in WANTED:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose threads"
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        found = serve(asked)
        if found is None:
            return
        asked.detach()  # closed with all other files of this process
    become(*found)
    run(found[0].arguments)


if __name__ == "__main__":
    main()
