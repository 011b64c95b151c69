"""Every test of the log that takes `storage` runs on a local folder, in memory, and on a real S3 server."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.log.log import Log
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from holdfast.settings.sections import RetrySettings
from tests import s3
from tests.log.making import app_spec

QUICK = RetrySettings(attempts=3, first="1ms", longest="2ms")


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
            # test_local.py tests fsync; here it would only take time.
            return open_storage(str(tmp_path / "log"), fsync=False, retry=QUICK)
        case "memory":
            return open_storage(f"memory://{uuid.uuid4()}", retry=QUICK)
        case _:
            server: s3.S3Server = request.getfixturevalue("s3_server")
            return open_storage(f"{server.url}/{uuid.uuid4()}", server.options, retry=QUICK)


@pytest.fixture
def memory() -> Storage:
    return open_storage(f"memory://{uuid.uuid4()}", retry=QUICK)


@pytest.fixture
def log(storage: Storage) -> Log:
    return Log.create_or_open(storage, app_spec())
