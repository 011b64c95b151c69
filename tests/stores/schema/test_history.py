"""The schema history in the log, and whether code can read it."""

from dataclasses import dataclass

from holdfast.stores.schema.history import effective, one_way, unreadable
from tests.stores.schemas import First, Gained, Renamed, Tenths, history, spec_of


def test_the_log_keeps_every_schema_once() -> None:
    log = history(First, Gained, Renamed, Tenths, Gained, First)
    assert [(version.number, version.fields) for version in log.schemas] == [
        (1, "{user: str, score: int}"),
        (1, "{user: str, score: int, tags?: list[str], best?: float | null}"),
        (1, "{user/player: str, score: int, tags?: list[str]}"),
        (2, "{user/player: str, score: float, tags?: list[str]}"),
    ]
    assert log.schema == 2
    assert log.schemas[-1].upcast_from == (1,)
    assert effective(log, spec_of(First)).schema == 1


def test_an_unreadable_schema_is_refused_with_the_next_step() -> None:
    @dataclass
    class Floats:
        user: str
        score: int
        level: int

    [line] = unreadable(history(First), spec_of(Floats))
    assert "level has no default, and was not written" in line
    assert "@hf.schema(number=2, upcasters={1: ...})" in line
    assert unreadable(history(First, Gained, Renamed), spec_of(Tenths)) == []


def test_older_code_may_start_if_it_can_read_newer_values() -> None:
    assert unreadable(history(First, Gained), spec_of(First)) == []
    [line] = unreadable(history(First, Tenths), spec_of(First))
    assert "schema 2" in line and "start the newer code" in line


def test_newer_code_reports_which_older_code_cannot_read_it() -> None:
    assert one_way(history(First), spec_of(Gained)) == []
    [line] = one_way(history(First), spec_of(Tenths))
    assert "score was written as float and is read as int" in line
