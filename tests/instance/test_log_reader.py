"""Which versions an instance believes, while others are committed."""

from holdfast.instance.log_reader import LogReader
from holdfast.log import names
from holdfast.log.log import Log
from holdfast.log.objects import ObjectMissing
from holdfast.log.storage import open_storage
from holdfast.words import Version
from tests.log.making import Watched, app_spec, grow, store_spec


def test_a_version_is_believed_although_the_next_one_comes_while_it_is_checked() -> None:
    storage = open_storage("memory://believed")
    log = Log.create_or_open(storage, app_spec(store_spec()))
    grow(log, 2)
    source = LogReader(Log.open(watched := Watched(storage)))
    looked = False

    def look(call: str, name: str) -> None:
        """The next commit isn't there yet, but it is before the answer arrives, and another thread learns of it."""
        nonlocal looked
        if name == names.commit(Version(3)) and not looked:
            looked = True
            grow(log, 1)
            assert source.newest() == 3
            raise ObjectMissing(storage.place, name)

    watched.before = look
    found = source.commit(Version(2))
    assert looked
    assert found is not None and found.version == 2
