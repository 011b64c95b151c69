"""The driver's heartbeat as members read it: anything may be in that object."""

import msgspec
import pytest

from holdfast.errors import DamagedObject
from holdfast.group import driver_heartbeat
from holdfast.group.driver_heartbeat import DriverHeartbeat
from holdfast.group.members import LARGEST
from holdfast.log import documents, names
from holdfast.log.storage import open_storage


def test_an_object_of_any_size_is_read_only_up_to_the_largest_heartbeat() -> None:
    storage = open_storage("memory://driver-heartbeat", fsync=False)
    DriverHeartbeat(storage, "l", process="p", host="h", pid=1).beat()
    heartbeat = driver_heartbeat.read(storage, "l")
    assert heartbeat is not None
    large = documents.encode(msgspec.structs.replace(heartbeat, host="h" * LARGEST))
    storage.replace(names.DRIVER_HEARTBEAT, large)
    with pytest.raises(DamagedObject, match="more than"):  # it could be decoded, and isn't
        driver_heartbeat.read(storage, "l")
