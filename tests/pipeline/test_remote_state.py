"""A task's state, read from real replicas by a Spark worker, where one of them doesn't answer as it should."""

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from holdfast.instance.credentials import Credentials, NotAuthenticated
from holdfast.instance.instance import Instance
from holdfast.instance.messages import InstanceUnavailable
from holdfast.instance.unanswering import Unanswering
from holdfast.metrics import REGISTRY
from holdfast.pipeline import remote_state
from holdfast.pipeline.remote_state import RemoteState, StateLocations
from holdfast.retry import is_retryable
from holdfast.settings.sections import RetrySettings
from holdfast.settings.security import SecuritySettings
from holdfast.words import TaskId, Version
from tests.cluster.processes import free_port
from tests.freezing import freeze, wake
from tests.instance.processes import until
from tests.query.instances import Driver, config, process
from tests.query.test_standbys import GAME, KEYS, STORE

OURS, OTHERS = SecuritySettings(token="o" * 32), SecuritySettings(token="t" * 32)
TASK = TaskId(0, 0)


@contextmanager
def replicas(folder: Path, *securities: SecuritySettings) -> Iterator[tuple[Driver, list[str]]]:
    """A replica of every task per security, all caught up."""
    driver = Driver(str(folder / "log"), GAME)
    driver.commit(STORE, {(n,): n for n in KEYS})
    with ExitStack() as stack:
        addresses = []
        for number, security in enumerate(securities):
            given = msgspec.structs.replace(config(folder, f"game-{number}", GAME.tasks()), security=security)
            instance = Instance(given)
            instance.start()
            stack.callback(instance.stop)
            assert instance.wait_ready(30)
            addresses.append(instance.address)
        yield driver, addresses


def refused() -> float:
    """How many reads of this process were tried again because a replica refused the connection."""
    return REGISTRY.get_sample_value("holdfast_retries_total", {"error": "InstanceUnreachable"}) or 0.0


def state_at(driver: Driver, addresses: list[str], *, deadline: timedelta, security: SecuritySettings) -> RemoteState:
    locations = StateLocations(
        log_url=driver.log.storage.place,
        log_id=driver.log.id,
        app_file=1,
        log_options={},
        fsync=False,
        replicas={str(TASK): tuple(addresses)},
        deadline=deadline,
        retry=RetrySettings(),
        credentials=Credentials.of(security),
    )
    return RemoteState(locations, TASK, driver.version)


def test_a_replica_that_refuses_this_process_is_no_reason_not_to_ask_the_next_one(tmp_path: Path) -> None:
    with replicas(tmp_path, OTHERS, OURS) as (driver, addresses):
        state = state_at(driver, addresses, deadline=timedelta(seconds=30), security=OURS)
        assert state.approximate_count("numbers") > 0
        with pytest.raises(NotAuthenticated):
            state_at(driver, addresses[:1], deadline=timedelta(seconds=30), security=OURS).approximate_count("numbers")


def test_a_frozen_replica_takes_a_moment_of_the_deadline_and_not_its_share(tmp_path: Path) -> None:
    free = SecuritySettings()
    with (
        replicas(tmp_path, free) as (driver, addresses),
        process(config(tmp_path, "frozen", GAME.tasks())) as frozen,
    ):
        asked = [frozen.addresses()["flight"], *addresses]
        state = state_at(driver, asked, deadline=timedelta(hours=2), security=free)
        assert (
            state_at(driver, asked[:1], deadline=timedelta(minutes=1), security=free).approximate_count("numbers") > 0
        )
        freeze(frozen.pid)  # it is connected: gRPC itself gives up an attempt to connect
        assert state.approximate_count("numbers") > 0, "half of the deadline would be an hour"
        wake(frozen.pid)


def test_a_replica_that_is_back_is_asked_again_and_does_not_wait_for_a_frozen_one(tmp_path: Path) -> None:
    free = SecuritySettings()
    driver = Driver(str(tmp_path / "log"), GAME)
    driver.commit(STORE, {(n,): n for n in KEYS})
    before = refused()
    with (
        ExitStack() as stack,
        ThreadPoolExecutor(1) as reader,
        process(config(tmp_path, "frozen", GAME.tasks())) as frozen,
    ):
        asked = [frozen.addresses()["flight"], f"grpc://127.0.0.1:{free_port()}"]
        state_at(driver, asked[:1], deadline=timedelta(minutes=1), security=free).approximate_count("numbers")
        freeze(frozen.pid)
        read = reader.submit(
            state_at(driver, asked, deadline=timedelta(minutes=2), security=free).approximate_count, "numbers"
        )
        until(lambda: refused() > before, "the second replica refuses, after the first one didn't answer")
        port = int(asked[1].rpartition(":")[2])
        restarted = Instance(msgspec.structs.replace(config(tmp_path, "restarted", GAME.tasks()), port=port))
        restarted.start()
        stack.callback(restarted.stop)
        assert read.result(60) > 0, "the frozen one would have had the rest of two minutes"


def test_a_read_of_many_keys_may_take_longer_before_the_next_replica_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_state, "_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(remote_state, "_SECONDS_PER_KEY", 1e-3)
    monkeypatch.setattr(remote_state, "_unanswering", Unanswering())
    free = SecuritySettings()
    with replicas(tmp_path, free, free) as (driver, addresses):
        state = state_at(driver, addresses, deadline=timedelta(minutes=1), security=free)
        keys = pa.array([b"%06d" % n for n in range(50_000)], pa.binary())
        assert len(state.get("numbers", keys)) == len(keys)
        assert remote_state._unanswering.last(addresses) == addresses, "the first one has answered"


def test_connections_to_instances_that_are_not_read_any_more_are_closed() -> None:
    first = weakref.ref(remote_state._client("grpc://127.0.0.1:1"))
    for number in range(remote_state._CONNECTIONS):
        assert first() is not None
        remote_state._client(f"grpc://127.0.0.1:{number + 2}")
    gc.collect()
    assert first() is None


@pytest.mark.parametrize(("places", "says"), [({}, "no instance hosts it"), ({"0_0": ()}, "has an address to call")])
def test_a_task_without_a_replica_to_ask_is_an_error_that_may_pass(
    places: dict[str, tuple[str, ...]], says: str
) -> None:
    """A generation that someone has forged may leave it out, or name members that can't be called."""
    locations = StateLocations(
        log_url="memory://log",
        log_id="log",
        app_file=1,
        log_options={},
        fsync=False,
        replicas=places,
        deadline=timedelta(milliseconds=1),
        retry=RetrySettings(),
    )
    with pytest.raises(InstanceUnavailable, match=says) as raised:
        RemoteState(locations, TASK, Version(3)).approximate_count("numbers")
    assert is_retryable(raised.value)
