"""Every kind of store against its model: time moves by either clock, data comes late, replicas restart, also from an
older version, and drop slices when they like.

At every version all replicas answer like the model: through the bound store within the version, and through a view
made from nothing but the spec after it. What they count is what they show.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.stores.access import Now
from holdfast.stores.kinds import view_of
from holdfast.topology.processor import timed
from tests.apps import ENGINES
from tests.stores.kinds.models import MODELS, TIMES, entries_in
from tests.stores.kinds.worlds import DictWorld, EngineWorld

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

TRANSITIONS = st.sampled_from([0, 900, 6_000, 9_000, 12_000]) | st.integers(0, 12_000)
"""How far a clock moves. Whole numbers alone are drawn small: no history came past the retention."""


def histories(model: Any, *, least: int = 1) -> st.SearchStrategy[Any]:
    """Versions: how far both clocks moved on, what was done, where to look, and whether a replica restarts.

    With a handful of them at `least` the clocks come past the retention, and a restart has something to catch up with.
    """
    version = st.tuples(
        st.tuples(TRANSITIONS, TRANSITIONS),
        st.lists(model.operations(), min_size=least - 1, max_size=8),
        st.lists(TIMES, min_size=1, max_size=3),
        st.booleans(),
    )
    return st.lists(version, min_size=least, max_size=8)


def run(model: Any, world: Any, history: list[Any], *, event_time: bool) -> None:
    declared = model.declared()
    spec = timed(declared.spec(), event_times=event_time)
    wall, event = 0, 0 if event_time else None
    for (wall_moved, event_moved), operations, at, restart in history:
        wall += wall_moved
        now = Now(wall, event)
        store = declared.bind(world.writing(), now, spec=spec)
        store.begin_version()
        for operation in operations:
            model.do(operation, now)
            model.apply(store, operation)
        assert model.ask(store.read_only(), at) == model.answers(now, at)
        assert store.approximate_count() == entries_in(store)
        store.end_of_version()
        model.end_of_version()
        event = None if event is None else event + event_moved
        after = Now(wall, event)
        world.commit(after, restart=restart)
        wanted = model.answers(after, at)
        for replica in world.replicas():
            view = view_of(spec, replica, after)
            assert model.ask(view, at) == wanted
            assert view.approximate_count() == entries_in(view)


@pytest.mark.parametrize("event_time", [True, False], ids=["event-time", "wall-clock"])
@pytest.mark.parametrize("kind", MODELS)
@given(data=st.data())
@settings(max_examples=settings().max_examples // 2, deadline=None, suppress_health_check=SLOW)
def test_a_store_answers_like_its_model(kind: str, event_time: bool, data: st.DataObject) -> None:
    model = MODELS[kind]()
    run(
        model,
        DictWorld(timed(model.declared().spec(), event_times=event_time)),
        data.draw(histories(model)),
        event_time=event_time,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", MODELS)
@given(data=st.data())
@settings(max_examples=settings().max_examples // 5, deadline=None, suppress_health_check=SLOW)
def test_two_replicas_answer_alike_at_every_version(
    kind: str, engine: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = MODELS[kind]()
    history, event_time = data.draw(histories(model, least=6)), data.draw(st.booleans())
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        world = EngineWorld(timed(model.declared().spec(), event_times=event_time), engine, Path(folder))
        try:
            run(model, world, history, event_time=event_time)
        finally:
            world.close()
