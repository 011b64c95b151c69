"""The daemon of Spark's Python workers: a worker that Spark no longer needs ends without a trace."""

import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.pipeline.spark import SESSION


@pytest.fixture
def folder() -> Iterator[str]:
    """The address of a Unix socket is short, and tests' own folders have long names."""
    with tempfile.TemporaryDirectory() as made:
        yield made


def test_an_idle_worker_whose_socket_is_closed_ends_silently(folder: str) -> None:
    """As Spark does after a minute without work, and when it ends."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", SESSION["spark.python.daemon.module"], "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
            "SPARK_REUSE_WORKER": "1",
        },
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    assert daemon.stderr is not None
    (length,) = struct.unpack("!i", daemon.stdout.read(4))
    address = daemon.stdout.read(length).decode()
    with socket.socket(socket.AF_UNIX) as spark:
        spark.connect(address)
        (worker,) = struct.unpack("!i", spark.recv(4))
    while Path(f"/proc/{worker}").exists():  # its parent ignores SIGCHLD, so nothing is left of it
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.wait(0.05)
    daemon.stdin.close()
    assert daemon.stderr.read() == b""
    daemon.wait(30)
