"""Replicas drop slices when they flush, and their answers don't depend on when that is."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.instance.replica import Replica, ReplicaSettings
from holdfast.instance.snapshotter import Snapshotter
from holdfast.log.commits import Clocks
from holdfast.settings.sections import SnapshotSettings
from holdfast.stores.access import Now
from holdfast.words import Version
from tests.apps import ENGINES
from tests.instance.app_log import TASK, AppLog, Place, abandon, new_url
from tests.instance.timed import KEYS, STORES, Twin, answers, specs

EAGER = ReplicaSettings(overlay_bytes=1_000, batch_bytes=2_000, flush_versions=1)
LAZY = ReplicaSettings(flush_versions=1_000)
DIRECT = ReplicaSettings(flush_versions=1)
"""Writes all versions of a catch-up to the engine at once."""


def answers_of(replica: Replica, version: Version) -> dict[str, Any]:
    with replica.read_view(version) as view:
        return answers(view)


@pytest.mark.parametrize("engine", ENGINES)
@settings(
    max_examples=settings().max_examples // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 10**6))
@example(seed=106)  # two versions are written to the engine at once: there is none to read between them
def test_replicas_that_flush_at_different_times_answer_the_same(
    engine: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    app = AppLog(new_url(), specs=specs(engine))
    twin = Twin(app)
    folder = tmp_path_factory.mktemp("retention")
    eager, lazy = Place(folder / "eager").replica(app, EAGER), Place(folder / "lazy").replica(app, LAZY)
    for _ in range(25):
        version = twin.step(chance)
        eager.catch_up(version)
        if chance.random() < 0.7:
            eager.flush_overlay()
        lazy.catch_up(version)
        if chance.random() < 0.05:
            lazy.flush_overlay()
        oldest = max(1, eager.published.range[0], lazy.published.range[0])  # type: ignore[index]
        for readable in map(Version, {oldest, chance.randint(oldest, version), version}):
            assert answers_of(eager, readable) == answers_of(lazy, readable) == twin.expected(readable)
        if chance.random() < 0.05:
            Snapshotter(eager, app.log, SnapshotSettings()).save()
        if chance.random() < 0.1:
            abandon(eager) if chance.random() < 0.5 else eager.close()
            eager = Place(folder / "eager").replica(app, EAGER)
    for replica in (eager, lazy):
        replica.close()
    for number, (limits, step) in enumerate([(LAZY, 25), (DIRECT, 5)]):
        fresh = Place(folder / f"fresh-{number}").replica(app, limits)
        for version in map(Version, range(step, 26, step)):
            fresh.catch_up(version)
            assert answers_of(fresh, version) == twin.expected(version)
        fresh.close()


def test_a_mark_has_the_clocks_of_the_state_on_disk(place: Place) -> None:
    app = AppLog(new_url(), specs=specs("rocksdb"))
    app.commit({TASK: {}}, Clocks(5_000, 4_000, {"0": 4_000}))
    replica = place.replica(app)
    replica.catch_up(app.version)
    replica.close()
    replica = place.replica(app)
    with replica.read_view() as view:
        assert view.now == Now(5_000, 4_000)
    replica.close()


def test_a_version_keeps_its_clocks_while_it_can_be_read(place: Place) -> None:
    app = AppLog(new_url(), specs=specs("rocksdb"))
    replica = place.replica(app)
    for wall in (1_000, 2_000, 3_000):
        app.commit({TASK: {}}, Clocks(wall, None, {}))
        replica.catch_up(app.version)
        replica.flush_overlay()
    for version in (1, 2, 3):
        with replica.read_view(Version(version)) as view:
            assert view.now == Now(version * 1_000)
    replica.close()


def test_retention_follows_an_event_clock_that_starts_before_the_wall_clock(place: Place) -> None:
    """An app's first records may be years old; before them nothing expires."""
    app = AppLog(new_url(), specs=specs("memory"))
    twin = Twin(app)
    replica = place.replica(app, EAGER)
    twin.commit(Now(10**12), {})
    for event in range(0, 200_000, 5_000):
        version = twin.commit(Now(10**12, event), {"windows": [(KEYS[0], event)]})
        replica.catch_up(version)
        replica.flush_overlay()
        assert answers_of(replica, version) == twin.expected(version)
    with replica.read_view() as view:
        assert len(list(view.pinned.scan("windows", b"", None, reverse=False))) < 20
    replica.close()


def test_all_sliced_kinds_are_tested() -> None:
    sliced = {store.spec().kind for store in STORES.values() if store.spec().slice_ms}
    assert sliced == {"key-value", "window", "session", "versioned"}
