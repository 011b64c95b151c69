"""No error ends a background thread of an instance: it is reported, and the work goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ErrorCategory
from holdfast.instance.events import ProblemEvent
from holdfast.instance.instance import Instance
from holdfast.instance.replica import Replica
from holdfast.instance.restore_reporter import RestoreReporter
from holdfast.words import TaskId
from tests.instance.app_log import AppLog
from tests.instance.processes import until
from tests.instance.test_process import NO_SNAPSHOTS, config_of

TASK = TaskId(0, 0)


@pytest.fixture
def app(tmp_path: Path) -> AppLog:
    app = AppLog(str(tmp_path / "log"))
    app.grow(6, seed=1)
    return app


@pytest.fixture
def instance(app: AppLog, tmp_path: Path) -> Iterator[Instance]:
    instance = Instance(config_of(app, tmp_path, snapshots=NO_SNAPSHOTS))
    yield instance
    instance.stop()


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The first call fails as no call should."""
    right, failed = getattr(owner, name), list[None]()

    def call(*given: Any, **named: Any) -> Any:
        if not failed:
            failed.append(None)
            raise RuntimeError(f"{name} failed")
        return right(*given, **named)

    monkeypatch.setattr(owner, name, call)


def problems(instance: Instance) -> list[str]:
    found = [numbered.event for numbered in instance.events.since(0).events]
    return [each.message for each in found if isinstance(each, ProblemEvent) and each.category is ErrorCategory.BUG]


def test_an_instance_looks_for_versions_after_an_error_in_its_look(
    app: AppLog, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, instance.source, "newest")
    instance.start()
    assert instance.wait_ready(60)
    assert instance.replica(TASK).version == app.version
    assert problems(instance) == ["RuntimeError: newest failed"]


def test_a_restore_goes_on_after_an_error_where_its_failure_is_handled(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, Replica, "catch_up")
    once(monkeypatch, RestoreReporter, "suspended")
    instance.start()
    assert instance.wait_ready(60)
    assert problems(instance) == ["task 0_0: RuntimeError: suspended failed"]


def test_caches_are_shared_again_after_an_error(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.instance.instance._REBALANCE_LOOK", 0.01)
    calls = []
    monkeypatch.setattr(instance.resources, "rebalance", lambda: calls.append(1))
    once(monkeypatch, instance.resources, "rebalance")
    instance.start()
    until(lambda: calls, "the next round")
    assert problems(instance) == ["RuntimeError: rebalance failed"]
