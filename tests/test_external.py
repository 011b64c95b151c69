"""An app whose instances run as servers, on real Spark: it waits for them, and counts right while one is killed."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.group.rebalances import RebalanceEvent, RebalancePhase
from holdfast.states import AppState
from tests.apps import entries_of, game, points_app, write
from tests.group.servers import Server
from tests.instance.processes import until
from tests.test_app import wait_for

pytestmark = pytest.mark.spark


def test_an_app_counts_right_while_a_server_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(tmp_path / "input", 1, [game("alice", 1), game("bob", 2)])
    app = points_app(
        spark,
        tmp_path,
        instances="external",
        standbys=1,
        log=hf.LogSettings(url=str(log), fsync=False),
        group=hf.GroupSettings(heartbeat_interval="200ms", session_timeout="60s"),
    )
    events: list[RebalanceEvent] = []
    states: list[AppState] = []
    app.on_rebalance(events.append)
    app.on_state(lambda old, new: states.append(new))
    starting = threading.Thread(target=app.start)
    starting.start()
    wait_for(app, AppState.RESTORING)
    with Server(tmp_path, "a", app="points", log=log) as a, Server(tmp_path, "b", app="points", log=log) as b:
        try:
            starting.join(120)
            app.process_all_available()
            until(lambda: len(a.hosted()) == len(b.hosted()) == 2, "both have all tasks")
            assert entries_of(app)["alice"] == {"games": 1, "points": 1}
            active, standby = (a, b) if app._started().instances.replicas()["0_0"][0] == a.address else (b, a)
            seen = len(events)
            active.kill()
            for number in range(2, 6):
                write(tmp_path / "input", number, [game("alice", number)])
            app.process_all_available()
            assert standby.values("points", ["alice"]) == [{"games": 5, "points": 15}]
            until(lambda: any(e.phase is RebalancePhase.COMPLETED for e in events[seen:]), "a rebalance")
            wait_for(app, AppState.RUNNING)
            assert AppState.REBALANCING in states
            assert {move.target for event in events[seen:] for move in event.moves} == {standby.id}
        finally:
            app.stop()
