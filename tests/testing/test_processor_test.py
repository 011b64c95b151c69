"""`ProcessorTest` fails where an app would fail."""

import dataclasses
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import BadValue, TopologyError
from holdfast.pipeline.running import ProcessorFailed
from holdfast.testing import ProcessorTest
from holdfast.topology.processor import stores_of


@dataclasses.dataclass
class Score:
    points: int


@dataclasses.dataclass
class Other:
    points: int
    bonus: int


class Careless(hf.Processor):
    counts = hf.KeyValueStore("counts", value=int)
    scores = hf.KeyValueStore("scores", value=Score)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.counts[key] = self.counts.get(key, 0) + 1
        ctx.count("seen")
        if event.what == "raise":
            raise ValueError("no")
        if event.what == "shadow":
            self.counts = {}  # type: ignore[assignment]
        if event.what == "other":
            self.scores.put(key, Other(1, 2))  # type: ignore[arg-type]
        if event.what == "mapping":
            self.scores.put(key, {"points": 1})  # type: ignore[arg-type]


def test_a_version_in_which_process_raised_is_discarded() -> None:
    test = ProcessorTest(Careless)
    test.pipe("ann", {"what": ""})
    test.commit()
    test.pipe("ann", {"what": ""})
    with pytest.raises(ProcessorFailed, match="Nothing of the batch was committed"):
        test.pipe("bob", {"what": "raise"})
    assert test.store("counts").get("ann") == 1
    test.commit()
    assert dict(test.store("counts").items()) == {"ann": 1}
    assert test.counts == {"seen": 1}


def test_assigning_to_a_store_attribute_is_an_error() -> None:
    test = ProcessorTest(Careless)
    test.pipe("ann", {"what": "shadow"})
    with pytest.raises(ProcessorFailed, match=r"self.counts is no longer .*Write self.counts\[key\] = value"):
        test.commit()


@pytest.mark.parametrize("what", ["other", "mapping"])
def test_a_value_of_another_class_is_refused_at_the_put(what: str) -> None:
    with pytest.raises(ProcessorFailed, match="the store's values are Score") as caught:
        ProcessorTest(Careless).pipe("ann", {"what": what})
    assert isinstance(caught.value.__cause__, BadValue)


class NoId:
    def encode(self, value: object) -> bytes:
        return b""

    def decode(self, data: bytes) -> object:
        return None


@pytest.mark.parametrize(
    ("codec", "message"),
    [(5, "codec=5 has the id None"), (NoId(), "has the id None"), ("__main__:Mine", "into a module")],
)
def test_a_codec_that_cannot_be_imported_is_refused(codec: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        hf.KeyValueStore("s", value=int, codec=codec)


class Forwards(hf.Processor):
    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        ctx.forward(key, {"n": event.n})


def test_a_forwarded_value_of_another_type_is_refused_as_in_an_app() -> None:
    test = ProcessorTest(Forwards, output="k string, n bigint")
    assert test.pipe("ann", {"n": 1}) == [("ann", {"n": 1})]
    with pytest.raises(BadValue, match=r"has 'x' as n, which must be int64"):
        test.pipe("ann", {"n": "x"})


def test_only_objects_of_store_classes_are_a_processors_stores() -> None:
    class Looks:
        """Has the names of a store's methods and isn't one."""

        name = spec = bind = value_codec = None
        SINK_COLUMNS = ()

    class Mixed(hf.Processor):
        seen = hf.KeyValueStore("seen", value=int)
        looks = Looks()
        kind = hf.KeyValueStore

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.seen[key] = 1

    test = ProcessorTest(Mixed)
    test.pipe("ann", {})
    assert list(stores_of(Mixed)) == ["seen"]
    assert test.store("seen").get("ann") == 1
