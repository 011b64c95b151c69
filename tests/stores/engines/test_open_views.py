"""Views and scans that are open: counted, and named with where they were opened when they are in the way too long."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.stores.engines.base import Changes, Engine, Mark, Resources
from holdfast.stores.engines.open_views import OPEN, OpenOnes
from holdfast.stores.engines.registry import ENGINES, open_engine
from holdfast.words import Version
from tests.stores.making import specs


@pytest.fixture(autouse=True, scope="module")
def _older_objects_left_out() -> Iterator[None]:
    """These tests collect garbage in full, which takes over a second with all that a test run has loaded by now."""
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
    return OPEN.count("view")


def scans() -> int:
    gc.collect()
    return OPEN.count("scan", "watched-here")


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


def test_whoever_forgets_a_view_has_closed_it(engine: Engine) -> None:
    before = views()
    engine.view()
    assert views() == before


def test_closing_the_engine_closes_its_views(engine: Engine) -> None:
    before = views()
    view = engine.view()
    engine.close()
    assert views() == before
    del view


def test_a_view_of_the_present_is_not_in_the_way_and_one_of_the_past_is(engine: Engine) -> None:
    view = engine.view()
    of = {id(one) for one, _ in OPEN.long_open(-1)}
    fill(engine, 2)
    new = [one for one, _ in OPEN.long_open(-1) if id(one) not in of]
    assert [one.what for one in new] == ["view"]
    assert "test_open_views.py" in new[0].where
    assert "test_a_view_of_the_present" in new[0].where
    view.close()


class Hands:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_that_is_left_open_is_named_once_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hands()
    ones = OpenOnes(clock)
    scan = ones.watched("scores", iter([1, 2]))
    view = ones.view("/state/0_1")
    clock.now = 50
    ones.outdated(view)
    with caplog.at_level(logging.WARNING):
        clock.now = 61
        ones.name_long_open(60)
        assert len(caplog.records) == 1
        assert "a scan of scores has kept old state for 61 s. It was opened at" in caplog.text
        assert "test_open_views.py" in caplog.text
        clock.now = 115
        ones.name_long_open(60)
        ones.name_long_open(60)
        assert len(caplog.records) == 2
        assert "a view of /state/0_1 has kept old state for 65 s" in caplog.text
    assert [one.what for one, _ in ones.long_open(60)] == ["scan", "view"]
    ones.close(view)
    assert list(scan) == [1, 2]
    assert not ones.long_open(-1)
