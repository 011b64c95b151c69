"""The processes of a cluster: Spark's master and workers, an S3 server, instances, and the app."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyspark
from tenacity import retry, retry_if_exception_type, retry_if_result, stop_after_delay, wait_fixed

from holdfast.group.generations import Generation, Generations
from holdfast.group.members import Member, Members
from holdfast.log.chain import CommitChain
from holdfast.log.log import Log
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from tests import s3
from tests.cluster.counting import APP, LOG_URL
from tests.cluster.proxy import Proxy

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
WORKERS = 2
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the JVMs of the cluster, which do little."""


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Waits for a condition."""
    retry(
        retry=retry_if_result(lambda met: not met) | retry_if_exception_type(OSError),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(0.1),
    )(condition)()


def free_port() -> int:
    """A port that a server can take again after a restart: the system gives none of these to outgoing connections."""
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass
class Server:
    """An instance as a server: its process, and the proxies through which others reach it and it reaches the log."""

    id: str
    folder: Path
    options: dict[str, str]
    port: int = field(default_factory=free_port)
    rest_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        self.inward = Proxy(("127.0.0.1", self.port))
        endpoint = self.options["endpoint"].rpartition(":")
        self.outward = Proxy(("127.0.0.1", int(endpoint[2])))
        self.options = {**self.options, "endpoint": f"http://127.0.0.1:{self.outward.port}"}

    @property
    def rest(self) -> str:
        return f"http://127.0.0.1:{self.rest_port}"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {f"HOLDFAST_LOG__OPTIONS__{name.upper()}": value for name, value in self.options.items()}
        command = [
            *(sys.executable, "-m", "holdfast", "instance", "--app", APP, "--log", LOG_URL, "--id", self.id),
            *("--tags", f"rack={self.id}", "--bind", f"127.0.0.1:{self.port}"),
            *("--advertise", f"127.0.0.1:{self.inward.port}"),
        ]
        environment = {
            **os.environ,
            **options,
            "HOLDFAST_STATE__DIR": str(self.state),
            "HOLDFAST_REST__PORT": str(self.rest_port),
            "HOLDFAST_MEMORY__LIMIT": "256MiB",
            "HOLDFAST_RESTORE__BATCH_BYTES": "16MiB",
        }
        with (self.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = 120.0) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def delete_state(self) -> None:
        shutil.rmtree(self.state)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()
        self.inward.close()
        self.outward.close()


@dataclass
class Cluster:
    """Everything that runs. `servers` are the instances by their ids."""

    folder: Path
    master: str
    log: s3.S3Server
    servers: dict[str, Server]
    storage: Storage
    app: subprocess.Popen[str] | None = None

    def start_app(self, standbys: int = 1) -> None:
        command = [sys.executable, "-m", "tests.cluster.counting", str(self.folder), self.master]
        with (self.folder / "app.txt").open("ab") as output:
            self.app = subprocess.Popen(
                [*command, json.dumps(self.log.options), str(standbys)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        assert self.app.stdout is not None
        assert self.app.stdout.readline() == "running\n", self._end_of("app.txt")

    def finish_app(self) -> int:
        """Lets the app process everything that was written; the number of its versions."""
        assert self.app is not None
        assert self.app.stdin is not None and self.app.stdout is not None
        self.app.stdin.close()
        said = self.app.stdout.readline()
        assert said, self._end_of("app.txt")
        assert self.app.wait(120) == 0, self._end_of("app.txt")
        return int(json.loads(said)["version"])

    def _end_of(self, name: str) -> str:
        return (self.folder / name).read_text()[-4000:]

    def members(self) -> dict[str, Member]:
        return dict(Members(self.storage, Log.identify(self.storage)).read())

    def generation(self) -> Generation:
        found = Generations(self.storage, Log.identify(self.storage)).follow()
        assert found is not None
        return found

    def version(self) -> int:
        """The newest version in the log."""
        newest = CommitChain(self.storage, Log.identify(self.storage)).newest()
        return 0 if newest is None else newest.version

    def settled(self, running: set[str]) -> bool:
        """Whether these instances, and no others, host every task twice, caught up."""
        generation, members = self.generation(), self.members()
        places = {task: place.members for task, place in generation.tasks.items()}
        return (
            {id for members_of in places.values() for id in members_of} <= running
            and all(len(members_of) == min(2, len(running)) for members_of in places.values())
            and all(
                (hosted := members[id].tasks.get(task)) is not None and hosted.running
                for task, members_of in places.items()
                for id in members_of
            )
        )

    def active_with_tasks(self) -> str:
        """An instance that is active for some task."""
        return sorted(place.active for place in self.generation().tasks.values())[0]


@contextlib.contextmanager
def cluster(folder: Path, instances: int = 3) -> Iterator[Cluster]:
    """Starts an S3 server, a Spark cluster and instances, and ends all of them."""
    with contextlib.ExitStack() as closing:
        server = s3.start(folder / "s3")
        closing.callback(server.stop)
        servers = {}
        for name in "abcdefgh"[:instances]:
            servers[name] = Server(name, folder / f"instance-{name}", server.options)
            closing.callback(servers[name].close)
            servers[name].start()
        master = closing.enter_context(spark_cluster(folder))
        found = Cluster(folder, master, server, servers, open_storage(LOG_URL, server.options))
        try:
            yield found
        finally:
            if found.app is not None and found.app.poll() is None:
                found.app.kill()
                found.app.wait()


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """A master and its workers; the master's address."""
    port, ui = free_port(), free_port()
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SMALL,
        "PYSPARK_PYTHON": sys.executable,
    }
    started: list[subprocess.Popen[bytes]] = []

    def spawn(name: str, *arguments: str) -> None:
        with (folder / f"spark-{name}.txt").open("ab") as output:
            command = [str(SPARK_CLASS), *arguments]
            started.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))

    try:
        address = f"spark://127.0.0.1:{port}"
        where = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui)]
        spawn("master", "org.apache.spark.deploy.master.Master", *where)
        for number in range(WORKERS):
            work = ["--work-dir", str(folder / f"work-{number}"), "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            spawn(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *work, "--host", "127.0.0.1", address)
        until(lambda: _alive_workers(ui) == WORKERS)
        yield address
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def _alive_workers(ui: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{ui}/json/", timeout=5) as answer:
        said = answer.read()
    return int(json.loads(said)["aliveworkers"]) if said.startswith(b"{") else 0  # it listens before it has its pages
