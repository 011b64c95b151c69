"""`ProcessorTest` fails where an app would fail."""

import dataclasses
import warnings
from typing import Any, ClassVar

import pytest

import holdfast as hf
from holdfast.errors import BadValue, TopologyError
from holdfast.pipeline.running import ProcessorFailed
from holdfast.testing import ProcessorTest
from holdfast.testing.attributes import AttributeLost
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


class Watching(hf.Processor):
    """Flushes a buffer by the wall clock, and reports by stream time to an output of its own."""

    buffer = hf.KeyValueStore("buffer", value=int)

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.buffer[key] = event.n
        if event.n > 9:
            ctx.forward(key, {"n": event.n}, to="alerts")

    @hf.punctuate(every="30s", time="wall")
    def flush(self, now: int, ctx: hf.Context) -> None:
        for key, n in self.buffer.items():
            ctx.forward(key, {"n": n})
            del self.buffer[key]

    @hf.punctuate(every="1h", time="stream")
    def report(self, now: int, ctx: hf.Context) -> None:
        ctx.forward(now, {"n": ctx.timestamp}, to="hours")


HOUR = 3_600_000


def test_punctuators_fire_as_in_an_app() -> None:
    test = ProcessorTest(Watching, wall=0)
    test.pipe("ann", {"n": 1}, timestamp=0)
    assert test.advance("29s") == [], "the first version of an app fires nothing, and 29 s pass no multiple of 30 s"
    assert test.output("hours") == [(0, {"n": 0})], "stream time fires as soon as there is one"
    assert test.advance("1s") == [("ann", {"n": 1})]
    assert test.advance("29s") == []
    test.pipe("bob", {"n": 2}, timestamp=HOUR * 5 + 7)
    assert test.advance("10m") == [("bob", {"n": 2})], "once, however many intervals have passed"
    assert test.output("hours") == [(HOUR * 5 + 7, {"n": HOUR * 5 + 7})], "likewise"
    test.commit()
    assert test.output("hours") == []
    test.advance("55m", time="stream")
    assert test.output("hours") == []
    test.advance("5m", time="stream")
    assert [key for key, _ in test.output("hours")] == [HOUR * 6 + 7]


def test_a_punctuator_that_fails_fails_the_version() -> None:
    class Fails(hf.Processor):
        seen = hf.KeyValueStore("seen", value=int)

        def process(self, key: str, event: Any, ctx: hf.Context) -> None:
            self.seen[key] = 1

        @hf.punctuate(every="30s", time="wall")
        def flush(self, now: int, ctx: hf.Context) -> None:
            self.seen["flushed"] = 1
            raise ValueError("no")

    test = ProcessorTest(Fails)
    with pytest.raises(ProcessorFailed, match=r"Fails.flush\(\) raised ValueError: no"):
        test.advance("30s")
    assert dict(test.store("seen").items()) == {}


def test_stream_time_can_be_advanced_once_there_is_one() -> None:
    with pytest.raises(TopologyError, match="no event time to advance before the first record"):
        ProcessorTest(Watching).advance("1h", time="stream")


def test_rows_of_named_outputs_are_checked_if_their_columns_are_given() -> None:
    outputs = {"alerts": "k string, n bigint", "hours": "hour bigint, n bigint"}
    test = ProcessorTest(Watching, output="k string, n bigint", outputs=outputs)
    assert test.pipe("ann", {"n": 10}) == []
    assert test.output("alerts") == [("ann", {"n": 10})]
    with pytest.raises(BadValue, match=r"has 'x' as n, which must be int64"):
        ProcessorTest(Unchecked, outputs={"alerts": "k string, n bigint"}).pipe("ann", {"n": "x"})
    with pytest.raises(ProcessorFailed, match=r"to='alerts'\): there is no such output. Did you mean 'alert'\?"):
        ProcessorTest(Unchecked, outputs={"alert": "k string, n bigint"}).pipe("ann", {"n": 1})


class Unchecked(hf.Processor):
    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        ctx.forward(key, {"n": event.n}, to="alerts")


class Forgetful(hf.Processor):
    """Keeps data in its own attributes."""

    seen = hf.KeyValueStore("seen", value=int)
    shared: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.number = 0
        self.waiting: list[str] = []
        self.fixed = 7

    def init(self, ctx: hf.Context) -> None:
        self.started = ctx.version

    def process(self, key: str, event: Any, ctx: hf.Context) -> None:
        self.seen[key] = self.fixed
        if event.what == "number":
            self.number += 1
        if event.what == "waiting":
            self.waiting.append(key)
        if event.what == "new":
            self.new = key
        if event.what == "shared":
            self.shared.append(key)

    @hf.punctuate(every="1s", time="wall")
    def tick(self, now: int, ctx: hf.Context) -> None:
        self.at = now


@pytest.mark.parametrize("what", ["number", "waiting", "new", "shared"])
def test_an_attribute_that_is_set_while_processing_is_warned_about_once(what: str) -> None:
    test = ProcessorTest(Forgetful)
    with pytest.warns(AttributeLost, match=rf"Forgetful.{what} was changed in process\(\).*use a store") as found:
        [test.pipe("ann", {"what": what}) for _ in range(2)]
    assert len(found) == 1
    assert found[0].filename == __file__, "it names the line of the test"


def test_a_punctuator_is_watched_too_and_init_may_set_attributes() -> None:
    test = ProcessorTest(Forgetful)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        test.pipe("ann", {"what": ""})
    with pytest.warns(AttributeLost, match=r"Forgetful.at was changed in a punctuator"):
        test.advance("1s")
