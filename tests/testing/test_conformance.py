"""The conformance classes: Holdfast's own engines and kinds pass them, and incorrect ones don't."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.stores.engines.base import Mark
from holdfast.stores.engines.memory import MemoryEngine
from holdfast.stores.engines.registry import ENGINES
from holdfast.testing import EngineConformance, StoreConformance
from holdfast.testing.engines import speed_report


class TestRocksDB(EngineConformance):
    engine = "rocksdb"


class TestMemory(EngineConformance):
    engine = "memory"


def test_every_registered_engine_is_tested() -> None:
    assert {TestRocksDB.engine, TestMemory.engine} == set(ENGINES)


class LosesDrops(MemoryEngine):
    def drop(self, family: str, start: bytes, stop: bytes) -> None:
        pass


class ForgetsUnfinishedApply(MemoryEngine):
    def mark(self) -> Mark | None:
        mark = super().mark()
        return None if mark is None else Mark(mark.version, mark.commit, mark.log)


class Unsorted(MemoryEngine):
    def get_many(self, family: str, keys: pa.Array) -> pa.BinaryArray:
        return super().get_many(family, keys.take(pa.array(sorted(range(len(keys)), key=lambda n: keys[n].as_py()))))


@pytest.mark.parametrize(
    ("engine", "test"),
    [
        (LosesDrops, "test_a_dropped_range_is_gone_at_once"),
        (LosesDrops, "test_it_agrees_with_a_dictionary"),
        (ForgetsUnfinishedApply, "test_an_interrupted_apply_is_reported"),
        (Unsorted, "test_it_agrees_with_a_dictionary"),
    ],
)
def test_an_incorrect_engine_fails(engine: type, test: str, tmp_path: Path) -> None:
    class Suite(EngineConformance):
        pass

    suite = Suite()
    suite.engine = f"{__name__}:{engine.__name__}"
    with pytest.raises(AssertionError):
        getattr(suite, test)(tmp_path)


def test_the_speed_report_names_both_engines(tmp_path: Path) -> None:
    report = speed_report("memory", tmp_path, rows=2_000)
    assert "rocksdb" in report
    assert report.count("\n") == 4


class TestKeyValue(StoreConformance):
    def declared(self) -> hf.KeyValueStore[str, int]:
        return hf.KeyValueStore("scores", value=int, max_entries=20)

    def write(self, store: hf.KeyValueStore[str, int], dice: random.Random) -> None:
        key = f"k{dice.randrange(40)}"
        if dice.random() < 0.2:
            store.delete(key)
        else:
            store[key] = dice.randrange(1_000)

    def content(self, store: Any) -> object:
        return list(store.items())


class HidesState(hf.KeyValueStore[str, int]):
    """A store with state outside of its bytes, which no replica has."""

    total = 0

    def put(self, key: str, value: int | None, ttl: Any = None) -> None:
        type(self).total += 1
        super().put(key, type(self).total, ttl)


HidesState.KIND = None


def test_a_kind_with_state_outside_of_its_bytes_fails() -> None:
    class Suite(TestKeyValue):
        def declared(self) -> hf.KeyValueStore[str, int]:
            return HidesState("scores", value=int)

    with pytest.raises(AssertionError, match="different bytes"):
        Suite().test_all_it_knows_is_in_its_bytes()
