"""Apps whose instances ask who calls them, on real Spark with two instances."""

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.group_instances import GroupInstances
from holdfast.instance.client import StateClient
from holdfast.instance.credentials import NO_CREDENTIALS, NotAuthenticated, Unprotected
from holdfast.occupied import check_places
from holdfast.states import AppState
from holdfast.words import TaskId
from tests.apps import entries_of, game, points_app, settings, write
from tests.certificates import Authority
from tests.instance.processes import until

TOKEN = "hush-0123456789abcdef"
PLAYERS = [f"player-{n}" for n in range(20)]


def with_a_token(folder: Path) -> hf.SecuritySettings:
    file = folder / "token"
    file.write_text(f"{TOKEN}\n")
    return hf.SecuritySettings(token_file=str(file))


def with_certificates(folder: Path) -> hf.SecuritySettings:
    return Authority(folder / "ca").issue()


def instances_of(app: hf.App) -> GroupInstances:
    found = app._started().instances
    assert isinstance(found, GroupInstances)
    return found


def command_lines(instances: GroupInstances) -> bytes:
    processes = instances._processes
    assert processes is not None
    return b"".join(Path(f"/proc/{each._process.pid}/cmdline").read_bytes() for each in processes._all)


@pytest.mark.spark
@pytest.mark.usefixtures("without_forks")
@pytest.mark.parametrize("secure", [with_a_token, with_certificates])
def test_an_app_whose_instances_ask_who_calls(
    secure: Callable[[Path], hf.SecuritySettings],
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(2):  # the tasks of the second batch read state
        write(tmp_path / "input", number, [game(player) for player in PLAYERS])
    security = secure(tmp_path)
    with points_app(spark, tmp_path, instances=2, security=security) as app:
        app.process_all_available()
        assert entries_of(app) == {player: {"games": 2, "points": 2} for player in PLAYERS}  # of both instances
        instances = instances_of(app)
        for address, *_ in instances.replicas().values():
            with pytest.raises(NotAuthenticated), StateClient(address, 30.0) as stranger:
                stranger.stop()
        assert b"hush" not in command_lines(instances)

        instances.credentials = NO_CREDENTIALS  # what the next batch's tasks show
        write(tmp_path / "input", 2, [game(player) for player in PLAYERS])
        until(lambda: app.state is AppState.ERROR, "the refused batch has failed the app")
        cause = str(app.cause)
    assert "NotAuthenticated: the instance at grpc" in cause
    assert "asks for a token" in cause or "uses TLS, and this process has no certificate" in cause
    assert "hush" not in cause and "hush" not in caplog.text
    assert not any("hush" in value for _, value in spark.sparkContext.getConf().getAll())


@pytest.mark.spark
def test_an_app_does_not_wait_for_instances_that_it_cannot_trust(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "input", 0, [game("ann")])
    security = Authority(tmp_path / "ca").issue(expired=True)
    with pytest.raises(NotAuthenticated, match="certificate has expired. Renew it"):
        points_app(spark, tmp_path, security=security).start()


@pytest.mark.spark
def test_an_app_whose_rest_asks_who_calls(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "input", 0, [game(player) for player in PLAYERS])
    authority = Authority(tmp_path / "ca")
    files, tokens = authority.issue(), tmp_path / "tokens"
    tokens.write_text(f"dashboard {TOKEN}-reader read:points\nprometheus {TOKEN}-scraper admin\n")
    rest = hf.RestSettings(
        port=0, tokens_file=str(tokens), tls_cert_file=files.tls_cert_file, tls_key_file=files.tls_key_file
    )
    context = ssl.create_default_context(cafile=authority.file)
    with points_app(spark, tmp_path, instances=2, rest=rest) as app, httpx2.Client(verify=context) as client:
        app.process_all_available()
        client.headers["Authorization"] = f"Bearer {TOKEN}-reader"
        for address in app.addresses:  # each asks the other one for half of the keys
            for player in PLAYERS:
                found = client.get(f"{address}/v1/stores/points/keys/{player}")
                assert (found.status_code, found.json()["value"]["games"]) == (200, 1), found.text
            assert client.get(f"{address}/v1/state").status_code == 403
        assert app.metrics_address is not None and app.metrics_address.startswith("https://")
        assert client.get(app.metrics_address).status_code == 403
        client.headers["Authorization"] = f"Bearer {TOKEN}-scraper"
        assert 'holdfast_app{app="points"} 1.0' in client.get(app.metrics_address).text
        assert client.get(f"{app.address}/metrics").status_code == 200
        del client.headers["Authorization"]
        assert client.get(f"{app.address}/health/ready").status_code == 200
        assert client.get(app.metrics_address).status_code == 401
        tokens.write_text(f"dashboard {TOKEN}-renewed read:points\n")
        client.headers["Authorization"] = f"Bearer {TOKEN}-renewed"
        until(lambda: client.get(f"{app.address}/v1/stores").status_code == 200, "the changed file was read")
    assert "hush" not in "".join(capfd.readouterr())


def test_rest_for_other_machines_has_to_be_wanted(tmp_path: Path) -> None:
    open_rest = hf.RestSettings(host="0.0.0.0", port=0)
    with pytest.raises(Unprotected, match="REST would listen on '0.0.0.0'.*rest.tokens_file"):
        check_places("game", settings(tmp_path, rest=open_rest), [TaskId(0, 0)])
    check_places("game", settings(tmp_path, rest=replace(open_rest, insecure=True)), [TaskId(0, 0)])
    check_places("game", settings(tmp_path, rest=replace(open_rest, tokens="a b c")), [TaskId(0, 0)])
    check_places("game", settings(tmp_path, rest=replace(open_rest, enabled=False)), [TaskId(0, 0)])
