"""Background jobs and direct I/O: RocksDB in an instance uses the settings."""

from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.settings.sections import StateSettings
from holdfast.stores.engines.rocksdb_options import DATABASE, written_options
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds import store_spec
from tests.apps import settings
from tests.instance.embedded import start_once


def test_the_settings_reach_the_stores_of_an_instance(tmp_path: Path) -> None:
    state = StateSettings(background_jobs=5, direct_reads=True, direct_writes=True)
    chosen = settings(tmp_path, state=state)
    spec = store_spec("scores", "key-value", key=Schema.of(k="string"), codec="msgpack/1")
    start_once(chosen, spec)
    [folder] = {path.parent for path in chosen.state_dir("app").rglob("OPTIONS-*")}
    found = written_options(folder)[DATABASE]
    names = ("max_background_jobs", "use_direct_reads", "use_direct_io_for_flush_and_compaction")
    assert [found[name] for name in names] == ["5", "true", "true"]


@pytest.mark.parametrize("jobs", [0, 1, 257, True, 2.5])
def test_an_invalid_number_of_background_jobs_is_refused(jobs: int) -> None:
    with pytest.raises(SettingsError, match="state.background_jobs = .* from 2 to 256"):
        StateSettings(background_jobs=jobs)
