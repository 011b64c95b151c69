"""The driver's heartbeat as members read it: anything may be in that object."""

from typing import Any

import msgspec
import pytest

from holdfast.errors import DamagedObject
from holdfast.group import driver_heartbeat
from holdfast.group.driver_heartbeat import DriverHeartbeat
from holdfast.group.members import LARGEST, MemberState
from holdfast.log import documents, names
from holdfast.log.leadership import Leadership, OutdatedDriver
from holdfast.log.objects import Storage
from holdfast.log.storage import open_storage
from holdfast.words import Millis
from tests.group.making import LOG, new_storage


def test_an_object_of_any_size_is_read_only_up_to_the_largest_heartbeat() -> None:
    storage = open_storage("memory://driver-heartbeat", fsync=False)
    DriverHeartbeat(storage, "l", process="p", host="h", pid=1).beat()
    heartbeat = driver_heartbeat.read(storage, "l")
    assert heartbeat is not None
    large = documents.encode(msgspec.structs.replace(heartbeat, host="h" * LARGEST))
    storage.replace(names.DRIVER_HEARTBEAT, large)
    with pytest.raises(DamagedObject, match="more than"):  # it could be decoded, and isn't
        driver_heartbeat.read(storage, "l")


def heartbeat(storage: Storage, process: str, **settings: Any) -> DriverHeartbeat:
    return DriverHeartbeat(storage, LOG, process=process, host="h", pid=1, **settings)


def said(storage: Storage) -> tuple[str, MemberState]:
    found = driver_heartbeat.read(storage, LOG)
    assert found is not None
    return found.process, found.state


def test_a_driver_that_ends_says_so_only_in_its_own_heartbeat() -> None:
    storage = new_storage()
    former, driver = heartbeat(storage, "former"), heartbeat(storage, "driver")
    former.beat()
    driver.beat()
    former.end()
    assert said(storage) == ("driver", MemberState.JOINED)
    driver.end()
    assert said(storage) == ("driver", MemberState.LEFT)


@pytest.mark.parametrize("data", [b"damaged", None])
def test_a_driver_that_ends_replaces_no_heartbeat_of_which_it_is_not_known_whose_it_is(data: bytes | None) -> None:
    storage = new_storage()
    driver = heartbeat(storage, "driver")
    driver.beat()
    storage.delete([names.DRIVER_HEARTBEAT])
    if data is not None:
        storage.replace(names.DRIVER_HEARTBEAT, data)
    driver.end()
    assert storage.exists(names.DRIVER_HEARTBEAT) == (data is not None)
    assert data is None or storage.get(names.DRIVER_HEARTBEAT) == data


def test_a_driver_that_knows_of_its_successor_writes_no_heartbeat_any_more() -> None:
    storage = new_storage()
    first = Leadership.take_over(storage, LOG, "first", Millis(0))
    driver = heartbeat(storage, "first", is_outdated=lambda: first.is_outdated)
    driver.beat()
    Leadership.take_over(storage, LOG, "second", Millis(0))
    with pytest.raises(OutdatedDriver):
        first.check()
    before = storage.get(names.DRIVER_HEARTBEAT)
    driver.beat()
    driver.end()
    assert storage.get(names.DRIVER_HEARTBEAT) == before
