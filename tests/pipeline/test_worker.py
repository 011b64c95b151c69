"""A Spark worker checks that the log it finds is the app's."""

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.pipeline.remote_state import StateLocations
from holdfast.pipeline.worker import WrongLog, log_of
from holdfast.settings.sections import RetrySettings
from tests.log.making import app_spec


def test_a_worker_that_finds_another_log_writes_nothing(tmp_path: Path) -> None:
    own, other = (Log.create_or_open(open_storage(str(tmp_path / name)), app_spec()) for name in ("own", "other"))

    def locations(folder: str) -> StateLocations:
        return StateLocations(
            log_url=str(tmp_path / folder),
            log_id=own.id,
            app_file=own.app.number,
            log_options={},
            fsync=False,
            replicas={},
            deadline=timedelta(seconds=1),
            retry=RetrySettings(),
        )

    with pytest.raises(WrongLog, match=f"found log {other.id} at {tmp_path}/other; the app's is {own.id}"):
        log_of(locations("other"))
    assert log_of(locations("own")).id == own.id
