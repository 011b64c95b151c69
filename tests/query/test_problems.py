"""What answers don't say: files, hosts and the place of the log are for operators, in the instance's log."""

import sys
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from holdfast.errors import Closed, DamagedObject, HoldfastError, StorageUnavailable
from holdfast.instance.instance import Instance
from holdfast.instance.messages import InstanceDamaged, InstanceUnavailable
from holdfast.instance.read_views import ReadView
from holdfast.log.appfile import AppSpec, EndpointSpec
from holdfast.query.problems import problem_of, report
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.service import RestService
from holdfast.query.wanted import NobodyWaits
from holdfast.settings.rest import RestSettings
from holdfast.stores.engines.base import DamagedState
from tests.instance.processes import until
from tests.log.making import subtopologies_of
from tests.query.fake_tasks import APP, NUMBERS, STATE, World, served
from tests.query.instances import config, know_each_other, serving

SECRET = "/srv/secret"
STORE = msgspec.structs.replace(NUMBERS, engine="rocksdb")
GAME = AppSpec(id="game", partitions=2, stores=(STORE,), subtopologies=subtopologies_of({"numbers": 0}))


@pytest.mark.parametrize(
    "error",
    [
        StorageUnavailable(f"{SECRET}/log didn't answer."),
        DamagedState(Path(SECRET), "a test"),
        DamagedObject(f"{SECRET}/commits/7 can't be read."),
        InstanceUnavailable(f"{SECRET}:4711 doesn't answer."),
        InstanceDamaged(f"the state in {SECRET} is damaged."),
        Closed(f"{SECRET} is closed."),
    ],
)
def test_errors_of_other_parts_are_answered_without_their_texts(
    error: HoldfastError, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.commit(1, NUMBERS, {(n,): n for n in range(9)})
    tasks = world.reader.tasks_of("numbers")
    world.tasks[tasks[0]].error = error
    with served(world.reader) as client:
        answers = [client.get(f"/numbers/{path}") for path in ("range", "scan", "count", "range?partial=true")]
    assert [answer.status_code for answer in answers[:3]] == [problem_of(error).status] * 3
    assert not [answer.text for answer in answers if "secret" in answer.text]
    assert "secret" in caplog.text


def test_damaged_state_is_answered_without_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is: on the instance that is asked, or on another one, which this one asks."""

    def damaged(view: ReadView, *place: Any, **options: Any) -> Any:
        raise DamagedState(tmp_path / "state", "a test")

    with serving(tmp_path, GAME, RestSettings(port=0)) as (driver, instance, here):
        driver.commit(STORE, {(n,): n for n in range(12)})
        asked = Instance(config(tmp_path, "game-1", ()))
        asked.start()
        know_each_other([asked, instance])
        there = RestService(asked)
        there.start()
        try:
            urls = [f"{rest.url}/v1/stores/numbers/range" for rest in (here, there)]
            until(lambda: all(len(httpx2.get(url).json().get("entries", ())) == 12 for url in urls), "version 1")
            answers = []
            for url in urls:
                with monkeypatch.context() as patched:
                    for method in ("scan", "columns"):
                        patched.setattr(ReadView, method, damaged)
                    answers.append(httpx2.get(url))
                until(lambda: all(httpx2.get(url).status_code == 200 for url in urls), "the tasks are rebuilt")
            assert [answer.status_code for answer in answers] == [503, 503]
            assert not [answer.text for answer in answers if str(tmp_path) in answer.text]
            assert "is damaged and is being rebuilt" in answers[0].json()["message"]
        finally:
            there.stop()
            asked.stop()


def test_what_cannot_be_imported_is_answered_without_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "users_own_code.py").write_text("from users_own_code import nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_own_code", raising=False)
    own = msgspec.structs.replace(NUMBERS, name="own", kind="users_own_code:Kind")
    app = AppSpec(
        id="game",
        partitions=1,
        stores=(own, *APP.stores),
        subtopologies=subtopologies_of({"own": 0, "scores": 0, "levels": 0, "numbers": 1}),
        endpoints=(EndpointSpec("/api/own", "users_own_code:function", ("numbers",)),),
    )
    with serve(create_app(World(app).reader, lambda: STATE), port=0) as server:
        answers = [httpx2.get(server.url + path) for path in ("/api/own", "/v1/stores/own/keys/1")]
    assert [answer.json()["error"] for answer in answers] == ["endpoint_not_found", "kind_not_found"]
    assert not [answer.text for answer in answers if str(tmp_path) in answer.text]
    assert str(tmp_path) in caplog.text


def test_a_client_that_leaves_is_not_worth_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    gone, refused = NobodyWaits("the client has left."), Closed("the replica is closed.")
    for error in (gone, refused):
        report(error, problem_of(error), "a scan")
    assert [record.getMessage() for record in caplog.records] == ["a scan was not answered: the replica is closed."]
