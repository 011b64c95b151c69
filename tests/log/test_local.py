"""The local storage: a write is durable when it returns and never visible in part; unsafe file systems are refused."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import StorageUnavailable
from holdfast.log.local import LocalStorage, NoHardLinks
from holdfast.log.objects import Put, StorageFull, StorageRefused
from tests.log.conftest import QUICK


@pytest.fixture
def syscalls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """System calls that write, in order: (call, path under tmp_path)."""
    calls: list[tuple[str, str]] = []
    fsync, link, mkdir = os.fsync, os.link, os.mkdir

    def relative(path: object) -> str:
        text = Path(str(path)).relative_to(tmp_path).as_posix()
        return "tmp" if text.startswith("log/.tmp/") else text

    def recorded_fsync(descriptor: int) -> None:
        calls.append(("fsync", relative(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def recorded_link(source: object, target: object) -> None:
        calls.append(("link", relative(target)))
        link(source, target)  # type: ignore[arg-type]

    def recorded_mkdir(path: object, mode: int = 0o777) -> None:
        calls.append(("mkdir", relative(path)))
        mkdir(path, mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "link", recorded_link)
    monkeypatch.setattr(os, "mkdir", recorded_mkdir)
    return calls


def test_bytes_and_folders_are_on_disk_before_a_create_returns(syscalls: list[tuple[str, str]], tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "log")
    storage.create("commits/1.json", b"x")
    made = [path for call, path in syscalls if call == "mkdir"]
    assert {"log", "log/commits"} <= set(made)
    linked = syscalls.index(("link", "log/commits/1.json"))
    # New parent folders are synced before the object can be seen in them.
    for parent in (".", "log", "log/commits"):
        assert ("fsync", parent) in syscalls[:linked]
    assert syscalls[linked - 1 :] == [
        ("fsync", "tmp"),
        ("link", "log/commits/1.json"),
        ("fsync", "log/commits"),
    ]

    syscalls.clear()
    storage.create("commits/2.json", b"y")
    assert syscalls == [("fsync", "tmp"), ("link", "log/commits/2.json"), ("fsync", "log/commits")]

    syscalls.clear()
    assert storage.create("commits/2.json", b"z") is Put.EXISTS
    assert syscalls[-1] == ("fsync", "log/commits"), "an object that EXISTS has to be durable too"


def test_a_folder_that_another_process_created_is_synced(syscalls: list[tuple[str, str]], tmp_path: Path) -> None:
    LocalStorage(tmp_path / "log").create("commits/1.json", b"x")
    syscalls.clear()
    LocalStorage(tmp_path / "log").create("commits/2.json", b"x")
    linked = syscalls.index(("link", "log/commits/2.json"))
    assert {("fsync", "log"), ("fsync", "log/commits")} <= set(syscalls[:linked])


def test_without_fsync_nothing_is_synced(syscalls: list[tuple[str, str]], tmp_path: Path) -> None:
    LocalStorage(tmp_path / "log", fsync=False).create("a", b"x")
    assert "fsync" not in [call for call, _ in syscalls]


KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast.log.local import LocalStorage

storage = LocalStorage(Path(sys.argv[1]))
storage.create("a/first", b"first")
call, nth = sys.argv[2], int(sys.argv[3])
real, seen = getattr(os, call), 0

def deadly(*args, **kwargs):
    global seen
    seen += 1
    if seen == nth:
        if call == "write":
            real(args[0], bytes(args[1])[:1000])      # half of it
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)

setattr(os, call, deadly)
storage.create("a/second", b"x" * 5000)
print("done")
"""


@pytest.mark.parametrize(
    ("call", "nth", "visible"),
    [("write", 1, False), ("fsync", 1, False), ("link", 1, False), ("fsync", 2, True)],
)
def test_a_kill_at_any_step_leaves_no_half_object(tmp_path: Path, call: str, nth: int, visible: bool) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), call, str(nth)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    storage = LocalStorage(tmp_path)
    assert storage.list("") == (["a/first", "a/second"] if visible else ["a/first"])
    if visible:
        assert storage.get("a/second") == b"x" * 5000
    assert storage.create("a/second", b"x" * 5000) is (Put.EXISTS if visible else Put.CREATED)


WRITING = """
import hashlib, itertools, os, sys
from pathlib import Path
from holdfast.log.local import LocalStorage

storage = LocalStorage(Path(sys.argv[1]), fsync=False)
for number in itertools.count():
    data = os.urandom(200_000)
    storage.create(f"a/{number:06d}-{hashlib.sha256(data).hexdigest()}", data)
    print(number, flush=True)
"""


def test_a_kill_at_any_moment_leaves_only_whole_objects(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITING), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        acknowledged = -1
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged == 50:
                process.kill()
        process.wait()
    storage = LocalStorage(tmp_path)
    names = storage.list("a/")
    assert len(names) >= acknowledged + 1
    for name in names:
        assert hashlib.sha256(storage.get(name)).hexdigest() == name.rpartition("-")[2]


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, or at the first write to a new folder."""
    storage = LocalStorage(tmp_path / "log")

    def refused(source: object, target: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(NoHardLinks, match="object storage"):
        LocalStorage(tmp_path)
    with pytest.raises(NoHardLinks):
        storage.create("a", b"x")
    assert storage.list("") == []


def _failing_writes(monkeypatch: pytest.MonkeyPatch, errors: Iterator[int]) -> None:
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if (code := next(errors, 0)) != 0:
            raise OSError(code, os.strerror(code))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path, retry=QUICK)
    with monkeypatch.context() as full:
        _failing_writes(full, iter([errno.ENOSPC] * 9))
        with pytest.raises(StorageFull, match=r"commits/1\.json.*[Ff]ree space"):
            storage.create("commits/1.json", b"x")
    assert storage.list("") == []
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert storage.create("commits/1.json", b"x") is Put.CREATED


@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_full_disk_loses_nothing_and_takes_writes_once_there_is_room(small_disk: Path) -> None:
    storage = LocalStorage(small_disk / "log", retry=QUICK)
    written: list[str] = []

    def fill() -> None:
        for number in range(99):
            storage.create(f"segments/{number:02d}", b"x" * 100_000)
            written.append(f"segments/{number:02d}")

    with pytest.raises(StorageFull, match="Free space"):
        fill()
    assert 5 <= len(written) <= 10
    again = LocalStorage(small_disk / "log", retry=QUICK)
    assert again.list("segments/") == written
    assert all(again.get(name) == b"x" * 100_000 for name in written)
    again.delete(written[:2])
    assert again.create("segments/99", b"x" * 100_000) is Put.CREATED


def test_an_io_error_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path, retry=QUICK)
    with monkeypatch.context() as stumbling:
        _failing_writes(stumbling, iter([errno.EIO, errno.EIO]))
        assert storage.create("a", b"x") is Put.CREATED
    with monkeypatch.context() as broken:
        _failing_writes(broken, iter([errno.EIO] * 99))
        with pytest.raises(StorageUnavailable, match="b in "):
            storage.create("b", b"x")


def test_a_link_whose_answer_was_lost_counts_as_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    real = os.link

    def link(source: str, target: str) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "as NFS does for a repeated request")

    monkeypatch.setattr(os, "link", link)
    assert storage.create("a", b"x") is Put.CREATED


def test_a_deleted_folder_is_created_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("a/1", b"x")
    (tmp_path / "a/1").unlink()
    (tmp_path / "a").rmdir()
    (tmp_path / ".tmp").rmdir()
    assert storage.create("a/1", b"y") is Put.CREATED
    assert storage.get("a/1") == b"y"


def test_an_object_is_replaced_in_a_folder_that_was_deleted_with_the_log(tmp_path: Path) -> None:
    """A server writes its heartbeats on when the log was replaced by a backup without the folder of heartbeats."""
    storage = LocalStorage(tmp_path / "log", fsync=False)
    storage.replace("group/members/a.json", b"1")
    (tmp_path / "log").rename(tmp_path / "away")
    (tmp_path / "log").mkdir()
    storage.replace("group/members/a.json", b"2")
    assert storage.get("group/members/a.json") == b"2"


def test_temporary_files_of_a_killed_process_are_deleted_after_a_day(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("a", b"x")
    old, young = tmp_path / ".tmp/old", tmp_path / ".tmp/young"
    for left in (old, young):
        left.write_bytes(b"half")
    now = young.stat().st_mtime
    os.utime(old, (now - 90_000, now - 90_000))
    LocalStorage(tmp_path)
    assert young.exists()
    assert not old.exists()


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a//b", "a/", ""])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageRefused):
        LocalStorage(tmp_path / "log").create(name, b"")
    assert not (tmp_path / "x").exists()


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("commits", b"")
    with pytest.raises(StorageRefused, match="commits/1"):
        storage.create("commits/1", b"")
