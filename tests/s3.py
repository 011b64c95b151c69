"""A real S3 server for tests: versitygw over a folder.

    server = s3.start(folder)
    storage = open_storage(server.url, server.options)
    server.stop()

The binary is the one that HOLDFAST_VERSITYGW names, or `versitygw` in ~/go/bin or on the path. Without it, tests are
skipped.
"""

import os
import secrets
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

BUCKET = "logs"
MISSING = (
    "no S3 server: versitygw isn't in ~/go/bin or on the path, nor named by HOLDFAST_VERSITYGW. Install it with "
    "`go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`."
)


class ServerMissing(Exception):
    pass


@dataclass(frozen=True)
class S3Server:
    url: str
    options: dict[str, str]
    port: int
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)


def binary() -> Path | None:
    named = os.environ.get("HOLDFAST_VERSITYGW")
    found = [named, Path.home() / "go/bin/versitygw", shutil.which("versitygw")]
    return next((Path(path) for path in found if path and Path(path).is_file()), None)


def start(folder: Path) -> S3Server:
    """Serves `folder` on a free port of this machine, with one empty bucket."""
    program = binary()
    if program is None:
        raise ServerMissing(MISSING)
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    key, secret = "holdfast-tests", secrets.token_hex(16)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    process = subprocess.Popen(
        [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", str(folder)],
        env={**os.environ, "ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _answers(port, process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    options = {
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key_id": key,
        "secret_access_key": secret,
        "region": "us-east-1",
        "allow_http": "true",
        "virtual_hosted_style_request": "false",
    }
    return S3Server(f"s3://{BUCKET}", options, port, process)


@retry(retry=retry_if_exception_type(OSError), stop=stop_after_delay(20), wait=wait_fixed(0.05), reraise=True)
def _answers(port: int, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise ServerMissing(f"versitygw ended with {process.returncode} before it listened on port {port}")
    socket.create_connection(("127.0.0.1", port), timeout=1).close()
