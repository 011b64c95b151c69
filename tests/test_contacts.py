"""The driver's contact with a member: one that can't be reached or hangs is reported, and one that is back too."""

import time
from pathlib import Path

import msgspec

from holdfast.contacts import Contact, News
from holdfast.group.generations import Address
from holdfast.instance.credentials import NO_CREDENTIALS
from holdfast.instance.events import RestoreEvent
from tests.cluster.processes import free_port
from tests.freezing import frozen
from tests.instance.processes import Process, until
from tests.query.instances import Driver, config
from tests.query.test_standbys import GAME, KEYS, STORE


def test_a_member_that_can_be_reached_again_is_reported_as_back(tmp_path: Path) -> None:
    Driver(str(tmp_path / "log"), GAME)
    lost: list[str] = []
    hanging: list[str] = []
    back: list[str] = []
    port = free_port()
    contact = Contact(
        "one",
        Address(incarnation=1, flight=f"grpc://127.0.0.1:{port}"),
        News(),
        NO_CREDENTIALS,
        on_event=lambda event: None,
        on_lost=lost.append,
        on_hangs=hanging.append,
        on_back=back.append,
        alert=lambda error: None,
    )
    until(lambda: bool(lost), "nobody listens there")
    assert not back
    with Process(msgspec.structs.replace(config(tmp_path, "game-0", GAME.tasks()), port=port)) as process:
        until(lambda: bool(back), "it was reached")
        assert process.addresses()["flight"].endswith(f":{port}")
        times = len(lost)
        process.kill()
        until(lambda: len(lost) > times, "it is lost once more")
        contact.close()
    assert {*lost} == {*back} == {"one"} and not hanging
    assert len(back) == 1, "once, not with every answer"


def test_an_event_that_cannot_be_shown_keeps_the_end_of_the_process_from_no_one(tmp_path: Path) -> None:
    Driver(str(tmp_path / "log"), GAME).commit(STORE, {(n,): n for n in KEYS})
    lost: list[str] = []
    events: list[RestoreEvent] = []

    def fail(event: RestoreEvent) -> None:
        events.append(event)
        raise KeyError(event.task)

    with Process(config(tmp_path, "game-0", GAME.tasks())) as process:
        contact = Contact(
            "one",
            Address(incarnation=1, flight=process.addresses()["flight"]),
            News(),
            NO_CREDENTIALS,
            on_event=fail,
            on_lost=lost.append,
            on_hangs=lost.append,
            on_back=lost.append,
            alert=lambda error: None,
        )
        until(lambda: len(events) > 1, "the event after the one that failed")
        assert {event.instance for event in events} == {"one"} and not lost
        process.kill()
        until(lambda: bool(lost), "the end is noticed")
        contact.close()


def test_a_member_that_answers_nothing_is_reported_after_several_calls_and_as_back_when_it_answers(
    tmp_path: Path,
) -> None:
    Driver(str(tmp_path / "log"), GAME).commit(STORE, {(n,): n for n in KEYS})  # so that there is something to restore
    lost: list[str] = []
    hanging: list[float] = []
    back: list[str] = []
    events: list[RestoreEvent] = []
    with Process(config(tmp_path, "game-0", GAME.tasks())) as process:
        contact = Contact(
            "one",
            Address(incarnation=1, flight=process.addresses()["flight"]),
            News(),
            NO_CREDENTIALS,
            on_event=events.append,
            on_lost=lost.append,
            on_hangs=lambda id: hanging.append(time.monotonic()),
            on_back=back.append,
            alert=lambda error: None,
            patience=3.0,
        )
        until(lambda: bool(events), "it has answered before")
        began = time.monotonic()
        with frozen(process.pid):
            until(lambda: len(hanging) > 1, "it is reported again and again")
        assert hanging[0] - began >= 2.0, "the last two of three calls of a second each"
        until(lambda: back == ["one"], "it answers")
        assert not lost
        contact.close()
