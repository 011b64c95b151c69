import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tests.instance.app_log import AppLog, Place, new_url


@pytest.fixture(params=["rocksdb", "memory"])
def app(request: pytest.FixtureRequest) -> AppLog:
    return AppLog(new_url(), engine=request.param)


@pytest.fixture
def rocks() -> AppLog:
    return AppLog(new_url())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "state")
    yield place
    place.close()
