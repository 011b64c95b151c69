"""How many keys a replica counts: those of its engine, and those that are still in the overlay."""

import pytest

from holdfast.instance.replica import Replica
from holdfast.stores.engines.registry import ENGINES
from tests.instance.app_log import TASK, AppLog, Place, new_url


def keys(numbers: range) -> dict[bytes, bytes | None]:
    return {b"\x01%05d" % n: b"value" for n in numbers}


def counted(replica: Replica) -> int:
    with replica.read_view() as view:
        return view.approximate_count("counts")


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_unflushed_keys_count_unless_the_engine_has_them(engine: str, place: Place) -> None:
    app = AppLog(new_url(), engine=engine)
    replica = place.replica(app)

    def commit(changes: dict[bytes, bytes | None]) -> int:
        replica.catch_up(app.commit({TASK: {"counts": changes}}))
        return counted(replica)

    assert counted(replica) == 0
    assert commit(keys(range(2_000))) == 2_000
    replica.flush_overlay()
    assert counted(replica) == 2_000
    assert commit(keys(range(2_000))) == 2_000, "all of them are rewritten"
    assert commit(keys(range(2_000, 3_000))) == 3_000, "all of them are new"
    assert commit(keys(range(2_000, 4_000, 2))) == pytest.approx(3_500, abs=600), "some were unflushed before"
    assert commit(dict.fromkeys(keys(range(100)))) == pytest.approx(3_400, abs=600)
    replica.flush_overlay()
    assert 3_400 <= counted(replica) <= 6_400, "RocksDB counts overwritten keys again until it compacts them"
