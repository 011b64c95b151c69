"""The examples of processors without Spark. `tests/test_programs.py` runs them as programs."""

from examples import conversations
from examples.batching import Batching, Order
from examples.conversations import Audited, Chat, UserSession
from examples.wind_turbines import SILENT_MS, Message, Twins
from holdfast.testing import ProcessorTest


def test_a_batch_is_sent_when_it_is_full_or_after_30_seconds() -> None:
    test = ProcessorTest(Batching, output="shop string, orders int, cents bigint", wall=0)
    orders = [Order(f"o-{n}", 100) for n in range(12)]
    sent = [test.pipe("tea", order) for order in orders]
    assert [rows for rows in sent if rows] == [[("tea", {"orders": 10, "cents": 1_000})]]
    assert test.advance("29s") == []
    assert test.store("waiting-orders").get("tea") == orders[10:], "they wait in a store, which survives crashes"
    assert test.advance("1s") == [("tea", {"orders": 2, "cents": 200})]
    assert test.advance("1h") == [], "an empty buffer is not sent"


def test_a_twin_follows_both_states_and_a_silent_turbine_is_noticed_once() -> None:
    outputs = {"alerts": "turbine string, event string"}
    test = ProcessorTest(Twins, output="turbine string, power string", outputs=outputs, wall=0)
    assert test.pipe("t-1", Message("reported", "off")) == []
    assert test.pipe("t-1", Message("desired", "on")) == [("t-1", {"power": "on"})]
    assert test.pipe("t-1", Message("reported", "on")) == [], "both states are the same"
    test.advance(f"{SILENT_MS - 60_000}ms")
    assert test.output("alerts") == []
    test.advance("1m")
    assert test.output("alerts") == [("t-1", {"event": "silent"})]
    test.advance("1h")
    assert test.output("alerts") == [], "once"
    assert test.pipe("t-1", Message("reported", "off")) == [("t-1", {"power": "on"})], "the command is sent again"
    assert test.output("alerts") == [("t-1", {"event": "back"})]


def test_one_message_is_in_four_stores_once() -> None:
    test = ProcessorTest(Chat, wall=0)
    for id, minute in (("m-1", 0), ("m-2", 3), ("m-2", 3), ("m-3", 90), ("m-4", 400)):
        test.pipe("ann", conversations.Message(id, "hello"), timestamp=minute * 60_000)
    assert test.store("user-sessions").get("ann") == UserSession(400 * 60_000, 400 * 60_000, 1), "the third session"
    assert [n for _, n in test.store("metrics").fetch("ann", from_=0)] == [2, 1, 1]
    found = [(session.start, session.end, n) for session, n in test.store("conversations").fetch("ann")]
    assert found == [(0, 90 * 60_000, 3), (400 * 60_000, 400 * 60_000, 1)]
    assert test.store("audit").get("m-3") == Audited("ann", 90 * 60_000, 5)
    assert test.counts["sent twice"] == 1
    test.advance("31d")
    assert ("m-3" in test.store("audit"), "ann" in test.store("user-sessions")) == (False, True)
