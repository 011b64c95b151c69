"""Options become a spec, and impossible ones are refused with the numbers and the next step."""

from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import TopologyError
from holdfast.stores.formats.types import Schema
from holdfast.stores.kinds import store_spec
from holdfast.stores.spec import KEY_VALUE, SESSION, TIMESTAMPED, VERSIONED, WINDOW, StoreSpec
from holdfast.topology.processor import specs_of
from holdfast.topology.stream import Aggregated, Grouped, Stream
from holdfast.topology.topology import Topology

HOUR, DAY = 3_600_000, 86_400_000


def made(kind: str = KEY_VALUE, **options: Any) -> StoreSpec:
    return store_spec("s", kind, key=Schema.of(k="string"), codec="msgpack/1", **options)


def test_a_spec_without_options_has_no_extra_fields() -> None:
    assert made() == StoreSpec(name="s", key=Schema.of(k="string"), codec="msgpack/1")


def test_durations_are_texts_or_timedeltas() -> None:
    assert made(ttl="1h30m").ttl_ms == made(ttl=timedelta(minutes=90)).ttl_ms == 90 * 60_000


def test_retention_is_the_larger_of_a_day_and_what_an_entry_needs() -> None:
    assert made(WINDOW, size="1h", grace="5m").retention_ms == DAY
    assert made(WINDOW, size="7d", grace="1d").retention_ms == 8 * DAY
    assert made(SESSION, gap="2d").retention_ms == 2 * DAY
    assert made(SESSION).retention_ms == DAY
    assert made(WINDOW, size="1h", retention="1h").retention_ms == HOUR


def test_entries_with_a_ttl_or_retention_are_in_slices() -> None:
    assert made(ttl="8h").slice_ms == HOUR
    assert made(TIMESTAMPED, ttl="2s").slice_ms == 1_000
    assert made(VERSIONED, retention="8h").slice_ms == HOUR
    assert made(max_entries=10, ttl="8h").slice_ms == 0, "its entries go one by one"
    assert made(max_entries=2**24).max_entries == 2**24


def test_a_store_without_an_engine_gets_the_apps() -> None:
    assert made(default_engine="memory").engine == "memory"
    assert made(engine="rocksdb", default_engine="memory").engine == "rocksdb"
    assert made(engine="my.engines:Tree", profile="write-heavy").engine == "my.engines:Tree"
    assert made(engine="memory", profile="balanced").engine == "memory"


def test_a_processors_store_with_a_profile_is_refused_on_an_app_wide_engine_in_memory() -> None:
    class Visits(hf.Processor):
        visits = hf.KeyValueStore("visits", value=int, profile="write-heavy")

    assert specs_of(Visits)[0][1].profile == "write-heavy"
    with pytest.raises(TopologyError, match=r"^KeyValueStore\('visits'\): profile='write-heavy' .* engine 'memory'"):
        specs_of(Visits, "memory")


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (WINDOW, {"size": "1h", "grace": "10m", "retention": "1h"}, '"1h" is shorter .* 1h and its grace of 10m'),
        (WINDOW, {}, "needs size="),
        (KEY_VALUE, {"history": "1h"}, r'VersionedKeyValueStore\(..., retention="1h"\)'),
        (WINDOW, {"size": "0s"}, '"0s" is too short'),
        (WINDOW, {"size": "1h", "ttl": "2h"}, 'retention="2h"'),
        (WINDOW, {"size": "1h", "max_entries": 5}, "max_entries=5 is for key-value"),
        (SESSION, {"gap": "2d", "retention": "1d"}, '"1d" is shorter than a session\'s gap of 2d'),
        (VERSIONED, {}, "needs retention="),
        (KEY_VALUE, {"retention": "6h"}, 'use ttl="6h"; .* history="6h"; .* window store'),
        (KEY_VALUE, {"ttl": "0s"}, '"0s" is too short. Use 1ms'),
        (KEY_VALUE, {"ttl": "soon"}, "'soon' is not a duration"),
        (KEY_VALUE, {"max_entries": 0}, "max_entries=0 is not possible"),
        (KEY_VALUE, {"max_entries": True}, "max_entries=True is not possible"),
        (KEY_VALUE, {"max_entries": 2**24 + 1}, "16,777,217 is more than the 16,777,216 entries .* more partitions"),
        (KEY_VALUE, {"refresh_on_read": True}, "Say max_entries="),
        (KEY_VALUE, {"engine": "rocks"}, "memory, rocksdb"),
        (KEY_VALUE, {"profile": "fast"}, "balanced, .*small-memory"),
        (KEY_VALUE, {"rocksdb_options": "tune"}, "'module:function'"),
        (KEY_VALUE, {"profile": "write-heavy", "engine": "memory"}, "profile='write-heavy' .* or use engine='rocksdb'"),
        (WINDOW, {"size": "1h", "profile": "write-heavy", "default_engine": "memory"}, "profile='write-heavy' tunes"),
        (KEY_VALUE, {"rocksdb_options": "a:b", "default_engine": "memory"}, "rocksdb_options='a:b' .* Remove it"),
        (KEY_VALUE, {"rocksdb_options": print}, "built-in function print.* is not the place .* 'module:function'"),
        (TIMESTAMPED, {"late": "never"}, "newest, last"),
        (KEY_VALUE, {"size": "5m"}, "there is no option size=. There are codec, durable, engine, .*max_entries"),
        (SESSION, {"duplicates": True}, "there is no option duplicates=."),
    ],
)
def test_impossible_options_are_refused_with_the_next_step(kind: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(TopologyError, match=says) as refused:
        made(kind, **options)
    assert str(refused.value).startswith("store 's': ")


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    wrong: dict[str, Any] = {"max_entires": 3}
    with pytest.raises(TopologyError, match=r"KeyValueStore\('s'\): .*no option max_entires=.*mean 'max_entries'\?"):
        hf.KeyValueStore("s", value=int, **wrong)
    with pytest.raises(TopologyError, match=r"WindowStore\('w'\): .*no option key_type=\. There are .*retention"):
        hf.WindowStore("w", value=int, size="1m", key_type=str)  # type: ignore[call-overload]
    stream = Stream(Topology(), (), (), None, ())
    with pytest.raises(TopologyError, match=r"store\('t'\): .*no option tlt=.*mean 'ttl'\?"):
        Aggregated(Grouped(stream, ()), ()).store("t", tlt="1h")  # type: ignore[arg-type]


def test_a_store_without_its_required_option_says_what_it_needs() -> None:
    with pytest.raises(TopologyError, match=r"VersionedKeyValueStore\('v'\): a versioned store needs retention="):
        hf.VersionedKeyValueStore("v", value=int)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match=r"WindowStore\('w'\): a window store needs size="):
        hf.WindowStore("w", value=int)  # type: ignore[call-overload]
