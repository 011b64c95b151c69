"""Every test of the log that takes `storage` runs on a local folder, in memory, and on a real S3 server."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.log.log import Log
from holdfast.log.objects import Retries, Storage
from holdfast.log.storage import open_storage
from tests import s3
from tests.log.making import app_spec

QUICK = Retries(attempts=3, first=timedelta(milliseconds=1), longest=timedelta(milliseconds=2))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    try:
        server = s3.start(tmp_path_factory.mktemp("s3"))
    except s3.ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture(params=["local", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    match request.param:
        case "local":
            # What reaches the disk and when is test_local's; here it would only take time.
            return open_storage(str(tmp_path / "log"), fsync=False, retries=QUICK)
        case "memory":
            return open_storage(f"memory://{uuid.uuid4()}", retries=QUICK)
        case _:
            server: s3.S3Server = request.getfixturevalue("s3_server")
            return open_storage(f"{server.url}/{uuid.uuid4()}", server.options, retries=QUICK)


@pytest.fixture
def memory() -> Storage:
    return open_storage(f"memory://{uuid.uuid4()}", retries=QUICK)


@pytest.fixture
def log(storage: Storage) -> Log:
    return Log.create_or_open(storage, app_spec())
