"""`holdfast instance` as a process: what it tells systemd, how it ends, and what it refuses before it waits."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import free_port
from tests.group.servers import Server
from tests.group.test_servers import GAME, game, joined
from tests.instance.processes import until
from tests.query.instances import Driver


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a unit with a watchdog of 0.4 seconds."""
    place = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", place)
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(place)
        listening.settimeout(60)
        yield listening


def said(listening: socket.socket, what: bytes) -> None:
    """Waits for a message that begins so, whatever else is said before."""
    while not listening.recv(1_000).startswith(what):
        pass


def test_the_watchdog_is_answered_while_an_instance_waits_for_its_app_and_while_it_serves(
    tmp_path: Path, systemd: socket.socket
) -> None:
    with Server(tmp_path, "a") as server:
        said(systemd, b"READY=1\nSTATUS=waits for the app 'game'")
        said(systemd, b"WATCHDOG=1")
        Driver(str(tmp_path / "log"), GAME)
        said(systemd, b"READY=1\nSTATUS=serves at ")
        said(systemd, b"WATCHDOG=1")
        server.terminate()
        said(systemd, b"STOPPING=1")
        assert server.wait()[0] == 0


def test_the_watchdog_is_answered_while_the_storage_of_the_log_hangs(
    tmp_path: Path, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # it accepts connections, and says nothing
        mute.settimeout(60)
        endpoint = f"http://127.0.0.1:{mute.getsockname()[1]}"
        for name, value in {
            "ENDPOINT": endpoint,
            "ACCESS_KEY_ID": "a",
            "SECRET_ACCESS_KEY": "b",
            "REGION": "c",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with Server(tmp_path, "a", options=("--log", "s3://bucket/log")) as server:
            asked, _ = mute.accept()
            with asked:
                for _ in range(3):
                    said(systemd, b"WATCHDOG=1")
                assert server.running and "waits for the storage" not in server.errors(), "its first request hangs"


def test_an_assignor_that_cannot_be_imported_is_refused_at_the_start(tmp_path: Path) -> None:
    with Server(tmp_path, "a", {"GROUP__ASSIGNOR": "nowhere:assign"}) as server:
        code, errors = server.wait()
    assert code == 1 and "group.assignor: 'nowhere:assign' can't be imported here" in errors


def test_sigterm_while_it_waits_for_the_log_is_a_clean_end(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as server:
        until(lambda: "waits for the app 'game'" in server.errors(), "it waits")
        server.terminate()
        code, errors = server.wait()
    assert code == 0, "as the first process of a container it would go on without a handler"
    assert errors.count("told to end") == 1


def test_an_end_says_in_one_line_what_it_waits_for_and_in_one_how_it_went(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as a, Server(tmp_path, "b") as b, game(tmp_path, standbys=1) as app:
        app.commit(1)
        joined(a, b)
        app.start()
        app.instances.wait_until_visible(app.driver.version)
        until(lambda: "active" in a.hosted().values(), "it is active for some task")
        a.terminate()
        code, errors = a.wait()
    assert code == 0
    assert len(re.findall(r"told to end: hands its active tasks \([1-4]\) over, for at most \d+ s", errors)) == 1
    assert len(re.findall(r"ends after [\d.]+ s: the others have its tasks", errors)) == 1


REFUSED = {
    "an id that names no object": (["--id", "a/b"], {}, "a/b"),
    "no token and other machines": (["--bind", "0.0.0.0:7070"], {}, "security.token_file"),
    "REST for other machines": ([], {"REST__HOST": "0.0.0.0"}, "rest.insecure"),
    "no port to bind": (["--bind", "127.0.0.1"], {}, "--bind '127.0.0.1' has no port"),
    "no brackets": (["--bind", "::1"], {}, "--bind '::1' is not an address"),
    "a port that is too large": (["--bind", "127.0.0.1:99999"], {}, "--bind '127.0.0.1:99999' is not an address"),
    "no host to advertise": (["--advertise", "a..b:7070"], {}, "--advertise 'a..b:7070' is not an address"),
    "no port to advertise": (["--advertise", "b:http"], {}, "--advertise 'b:http' is not an address"),
    "not a tag": (["--tags", "rack"], {}, "'rack' is not a tag"),
    "an unknown option": (["--standby", "1"], {}, "No such option: --standby"),
    "an unknown setting": ([], {"GROUP__SESSION": "1s"}, "session_timeout"),
    "no such file of settings": (["--file", "missing.toml"], {}, "missing.toml"),
    "no such token file": ([], {"SECURITY__TOKEN_FILE": "missing"}, "security.token_file"),
    "an unknown option of the storage": ([], {"LOG__OPTIONS__ENDPIONT": "x"}, "endpiont"),
}


@pytest.mark.parametrize(("options", "settings", "says"), REFUSED.values(), ids=REFUSED)
def test_what_no_log_makes_right_is_refused_before_it_waits_and_said_once(
    tmp_path: Path, options: list[str], settings: dict[str, str], says: str
) -> None:
    """There is no log, so a process that waits for it would not end."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "instance", "--app", "game", "--log", "s3://missing/log", *options],
        env={**os.environ, **{f"HOLDFAST_{name}": value for name, value in settings.items()}},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert (done.stdout + done.stderr).count(says) == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("which", ["state", "rest"])
def test_a_port_that_is_taken_is_found_before_it_waits(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options, settings = (["--bind", f"127.0.0.1:{port}"], {}) if which == "state" else ([], {"REST__PORT": port})
        with Server(tmp_path, "a", settings, options=options) as server:
            code, errors = server.wait()
    assert code == 1
    assert len(re.findall(rf"can't listen on 127.0.0.1(:|, port ){port}: .*Stop the program", errors)) == 1, errors
    assert "waits for the app" not in errors


def test_a_port_is_not_taken_from_others_while_it_waits(tmp_path: Path) -> None:
    port = free_port()
    with Server(tmp_path, "a", {"REST__PORT": str(port)}) as server:
        until(lambda: "waits for the app 'game'" in server.errors(), "it waits")
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_an_error_of_a_server_is_said_once(tmp_path: Path) -> None:
    Driver(str(tmp_path / "log"), GAME)
    with Server(tmp_path, "a", app="other") as server:
        assert server.process.stdout is not None
        output = server.process.stdout.read().decode()
        code, errors = server.wait()
    assert code == 1
    assert (output + errors).count("is the log of the app 'game'") == 1
    with Server(tmp_path, "a") as first:
        joined(first)
        with Server(tmp_path, "a") as second:
            assert second.process.stdout is not None
            output = second.process.stdout.read().decode()
            code, errors = second.wait()
        assert code == 1
        assert (output + errors).count("held by instance 'a'") == 1


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_server_that_is_refused_does_not_end_the_interpreter_under_its_threads(
    tmp_path: Path, without_forks: None, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A thread of gRPC or RocksDB that met the end of the interpreter would abort the process, once in many times."""
    Driver(str(tmp_path / "log"), GAME)
    (tmp_path / "sitecustomize.py").write_text("import atexit, os\natexit.register(os.abort)\n")
    with Server(tmp_path / "here", "a", log=tmp_path / "log") as first:
        joined(first)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        with Server(tmp_path / where, "a", log=tmp_path / "log") as second:
            code, errors = second.wait()
    assert code == 1, errors
    assert errors.count("instance 'a' (process ") == 1


def test_ctrl_c_while_it_waits_prints_no_traceback(tmp_path: Path) -> None:
    with Server(tmp_path, "a") as server:
        until(lambda: "waits for the app 'game'" in server.errors(), "it waits")
        server.process.send_signal(signal.SIGINT)
        code, errors = server.wait()
    assert code == 0
    assert "Traceback" not in errors
