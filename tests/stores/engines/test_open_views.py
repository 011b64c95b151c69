"""Open views and scans: counted, and reported with the line that opened them if they keep old state for too long."""

import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.stores.engines.base import Changes, Engine, Mark, Resources
from holdfast.stores.engines.open_views import OPEN_VIEWS, OpenView, OpenViews
from holdfast.stores.engines.registry import ENGINES, open_engine
from holdfast.words import Version
from tests.stores.making import specs


@pytest.fixture(autouse=True, scope="module")
def _older_objects_left_out() -> Iterator[None]:
    """These tests run full garbage collections, which take over a second with all objects of a test run."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(request.param, tmp_path / "state", specs(["watched-here"]), Resources(16 << 20))
    fill(engine, 1)
    yield engine
    engine.close()


def fill(engine: Engine, version: int) -> None:
    keys = pa.array([b"\x01%05d" % n for n in range(3_000)])
    mark = Mark(Version(version), f"c{version}", "log-1")
    engine.apply([("watched-here", Changes(keys, pa.array([b"%d" % version] * 3_000)))], mark)


def views() -> int:
    gc.collect()
    return OPEN_VIEWS.count("view")


def scans() -> int:
    gc.collect()
    return OPEN_VIEWS.count("scan", "watched-here")


def test_views_and_scans_are_counted_until_they_end(engine: Engine) -> None:
    before = views()
    view = engine.view()
    assert views() == before + 1
    first, second, third = (view.scan("watched-here", b"", None) for _ in range(3))
    assert scans() == 3
    assert len(list(first)) == 3_000
    next(second)
    assert scans() == 2
    second.close()  # type: ignore[attr-defined]  # what a scan returns is a generator
    assert scans() == 1
    del third
    assert scans() == 0
    view.close()
    assert views() == before


def test_a_garbage_collected_view_is_closed(engine: Engine) -> None:
    before = views()
    engine.view()
    assert views() == before


def test_closing_the_engine_closes_its_views(engine: Engine) -> None:
    before = views()
    view = engine.view()
    engine.close()
    assert views() == before
    del view


def test_only_an_outdated_view_has_an_age(engine: Engine) -> None:
    view = engine.view()
    of = {id(each) for each, _ in OPEN_VIEWS.older_than(-1)}
    fill(engine, 2)
    new = [each for each, _ in OPEN_VIEWS.older_than(-1) if id(each) not in of]
    assert [each.what for each in new] == ["view"]
    assert "test_open_views.py" in new[0].where
    assert "test_only_an_outdated_view" in new[0].where
    view.close()


class SetClock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_forgotten_view_is_reported_once_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = SetClock()
    opened = OpenViews(clock)
    scan = opened.add_scan("scores", iter([1, 2]))
    view = opened.add_view("/state/0_1")
    clock.now = 50
    opened.mark_outdated([view])
    with caplog.at_level(logging.WARNING):
        clock.now = 61
        opened.warn_about_old(60)
        assert len(caplog.records) == 1
        assert "a scan of scores has kept old state for 61 s. It was opened at" in caplog.text
        assert "test_open_views.py" in caplog.text
        clock.now = 115
        opened.warn_about_old(60)
        opened.warn_about_old(60)
        assert len(caplog.records) == 2
        assert "a view of /state/0_1 has kept old state for 65 s" in caplog.text
    assert [each.what for each, _ in opened.older_than(60)] == ["scan", "view"]
    opened.close(view)
    assert list(scan) == [1, 2]
    assert not opened.older_than(-1)


def test_a_held_view_is_reported_some_time_after_its_hold(caplog: pytest.LogCaptureFixture) -> None:
    opened = OpenViews(clock := SetClock())
    view = Viewing(opened.add_view("/state/0_1"))
    opened.mark_outdated([view.opened])
    opened.hold(view, 600)
    opened.hold(view, 10)
    opened.hold(object(), 10)  # a view of a user's engine
    with caplog.at_level(logging.WARNING):
        clock.now = 659
        opened.warn_about_old(60)
        assert not caplog.records
        clock.now = 661
        opened.warn_about_old(60)
        assert "kept old state for 661 s, and its last hold has ended 61 s ago" in caplog.text


@dataclass
class Viewing:
    """A view of an engine that records its views."""

    opened: OpenView
