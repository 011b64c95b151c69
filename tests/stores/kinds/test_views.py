"""Read-only views: every kind can be read through one, and none can be written to."""

from typing import Any

import pytest

import holdfast as hf
from holdfast.stores.kinds import view_of

STORES: list[Any] = [
    hf.KeyValueStore("key-value", value=int),
    hf.KeyValueStore("bounded", value=int, max_entries=3),
    hf.KeyValueStore("expiring", value=int, ttl="1h"),
    hf.TimestampedKeyValueStore("timestamped", value=int),
    hf.VersionedKeyValueStore("versioned", value=int, retention="1h"),
    hf.WindowStore("window", value=int, size="1m"),
    hf.SessionStore("session", value=int, gap="1m"),
]
WRITES = {
    *("put", "put_many", "put_if_absent", "delete", "remove", "merge", "update", "pop", "setdefault", "clear"),
    *("__setitem__", "__delitem__", "bind", "begin_version", "end_of_version", "rewriter"),
}


@pytest.mark.parametrize("declared", STORES, ids=lambda store: store.name)
def test_a_view_cannot_write(declared: Any) -> None:
    store = declared.bind(hf.DictBytes(), hf.Now(wall=0, event=0))
    assert WRITES & set(dir(store)), "the store itself has some"
    views: list[Any] = [store.read_only(), view_of(declared.spec(), hf.DictBytes(), hf.Now(wall=0, event=0))]
    for view in views:
        assert WRITES & set(dir(view)) == set()
        with pytest.raises(AttributeError):
            view.put("ann", 1)
        with pytest.raises(TypeError):
            view["ann"] = 1
