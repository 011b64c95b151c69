"""The app's file changes while an instance runs: the instance reads it with the first version that names it."""

import logging

import pytest

from holdfast.errors import DamagedObject
from holdfast.instance.log_reader import LogReader
from holdfast.log import names
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.words import Version
from tests.log.making import app_spec, grow
from tests.stores.schemas import First, Gained, spec_of


def test_versions_are_read_although_the_app_file_is_unreadable(caplog: pytest.LogCaptureFixture) -> None:
    storage = open_storage("memory://app-changes")
    first = Log.create_or_open(storage, app_spec(spec_of(First)))
    grow(first, 1)
    source = LogReader(first)
    second = Log.create_or_open(storage, app_spec(spec_of(Gained)))
    grow(second, 2)
    assert source.commit(Version(1)) is not None
    assert source.app.number == 1, "version 1 belongs to file 1"

    file = storage.get(names.app(2))
    storage.delete([names.app(2)])
    storage.create(names.app(2), b"no file")
    with caplog.at_level(logging.WARNING):
        assert source.commit(Version(2)) is not None, "the version is read without its app's file"
    assert "the app's file of number 2 can't be read" in caplog.text
    assert source.app.number == 1
    storage.delete([names.app(2)])
    storage.create(names.app(2), file)
    assert source.commit(Version(3)) is not None
    assert source.app == second.app


def test_the_newest_file_is_read_with_the_newest_version() -> None:
    storage = open_storage("memory://app-changes-newest")
    log = Log.create_or_open(storage, app_spec(spec_of(First)))
    source = LogReader(log)
    grow(log, 1)
    grow(Log.create_or_open(storage, app_spec(spec_of(Gained))), 1)
    assert source.newest() == 2
    assert source.app.number == 2


def test_each_version_has_its_own_app_file(caplog: pytest.LogCaptureFixture) -> None:
    storage = open_storage("memory://app-changes-versions")
    first = Log.create_or_open(storage, app_spec(spec_of(First)))
    grow(first, 2)
    second = Log.create_or_open(storage, app_spec(spec_of(Gained)))
    between = LogReader(Log.open(storage, 2))
    assert between.app.number == 2
    assert between.app_of(Version(2)).number == 1, "no version has the newest file yet"
    grow(second, 2)
    source = LogReader(first)
    assert [source.app_of(Version(version)).number for version in (4, 3, 2, 1)] == [2, 2, 1, 1]
    assert source.app_of(Version(9)).number == 2, "an unknown version has the newest known file"

    again = LogReader(first)
    again.learn(Version(3))
    again.learn(Version(4))
    for version in (2, 3, 4):
        storage.delete([names.commit(Version(version))])
    storage.create(names.commit(Version(2)), b"no commit")
    again._commits.clear()
    assert again.app_of(Version(4)).number == 2, "known without reading the log"
    with caplog.at_level(logging.WARNING):
        assert again.app_of(Version(2)).number == 2
    assert "the commit of version 2 can't be read" in caplog.text


def test_an_app_file_of_another_log_is_an_error() -> None:
    storage = open_storage("memory://app-changes-another")
    log = Log.create_or_open(storage, app_spec(spec_of(First)))
    storage.delete([names.LOG, names.app(1)])
    Log.create_or_open(storage, app_spec(spec_of(First)))
    with pytest.raises(DamagedObject, match="it belongs to the log"):
        log.apps.read(1)
