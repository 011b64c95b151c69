"""Who may call an instance: tokens, certificates, and the texts that say what differs."""

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from holdfast import metrics
from holdfast.clock import ManualClock
from holdfast.errors import ErrorCategory, HoldfastError, SettingsError
from holdfast.instance.callers import Callers
from holdfast.instance.client import StateClient
from holdfast.instance.config import decode, encode
from holdfast.instance.credentials import NO_CREDENTIALS, Credentials, NotAuthenticated, Unprotected, is_loopback
from holdfast.instance.instance import Instance
from holdfast.instance.messages import InstanceUnavailable
from holdfast.pipeline.remote_state import RemoteState, StateLocations
from holdfast.settings.sections import RetrySettings
from holdfast.settings.security import SecuritySettings
from holdfast.stores.ranges import Ranges
from tests.certificates import Authority
from tests.instance.app_log import TASK, AppLog, key_of
from tests.instance.processes import Process, until
from tests.instance.test_hosting import running
from tests.instance.test_process import config_of

TOKEN, OTHER_TOKEN = "hush-0123456789abcdef", "hush-fedcba9876543210"
KEYS = pa.array([key_of(n) for n in range(5)], pa.binary())

READS: dict[str, Callable[[StateClient, AppLog], object]] = {
    "status": lambda client, app: client.status(),
    "get_one": lambda client, app: client.get_one(TASK, "counts", key_of(1), app.version),
    "get_many": lambda client, app: client.get_many(TASK, "counts", app.version, KEYS),
    "scan": lambda client, app: client.scan(TASK, "counts", app.version),
    "scan_many": lambda client, app: client.scan_many(TASK, "counts", app.version, Ranges(KEYS, KEYS)),
    "stop": lambda client, app: client.stop(),
}
"""At least one call of each method that an instance has."""


@pytest.fixture
def app(tmp_path: Path) -> AppLog:
    app = AppLog(str(tmp_path / "log"))
    app.grow(3, seed=1)
    return app


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def other_ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "other-ca")


@pytest.fixture
def start(app: AppLog, tmp_path: Path) -> Iterator[Callable[[SecuritySettings], str]]:
    """Starts an instance, and gives its address."""
    started: list[Instance] = []

    def start(security: SecuritySettings) -> str:
        instance = Instance(
            config_of(
                app, tmp_path, name=f"i{len(started)}", state_dir=str(tmp_path / str(len(started))), security=security
            )
        )
        started.append(instance)
        instance.start()
        return instance.address

    yield start
    for instance in started:
        instance.stop()


def refused(address: str, security: SecuritySettings, app: AppLog, read: str = "status") -> str:
    with (
        pytest.raises(NotAuthenticated) as caught,
        StateClient(address, 30.0, None, Credentials.of(security)) as client,
    ):
        READS[read](client, app)
    assert caught.value.category is ErrorCategory.INVALID  # so nobody tries it again
    assert "hush" not in str(caught.value)
    return str(caught.value)


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS)
def test_every_call_needs_the_token(read: str, start: Callable[[SecuritySettings], str], app: AppLog) -> None:
    address = start(SecuritySettings(token=TOKEN))
    asks = f"the instance at {address} asks for a token, and this process has none. Set security.token_file"
    assert asks in refused(address, SecuritySettings(), app, read)
    assert "doesn't accept the token of this process" in refused(
        address, SecuritySettings(token=OTHER_TOKEN), app, read
    )
    with StateClient(address, 30.0, None, Credentials.of(SecuritySettings(token=TOKEN))) as client:
        READS[read](client, app)


def test_a_call_is_refused_before_it_is_decoded(start: Callable[[SecuritySettings], str]) -> None:
    address = start(SecuritySettings(token=TOKEN))
    client = flight.connect(address)
    options = flight.FlightCallOptions(timeout=30)
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(client.do_action(flight.Action("no such action", b"{"), options))
    with pytest.raises(flight.FlightUnauthenticatedError):
        client.do_get(flight.Ticket(b"\x00"), options).read_all()


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", TOKEN.encode())],
        [(b"authorization", b"bearer " + TOKEN.encode())],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer " + TOKEN.encode()[:-1])],
        [(b"authorization", b"Bearer " + TOKEN.encode() + b"0")],
        [(b"authorization", b"Bearer x"), (b"authorization", b"Bearer " + TOKEN.encode())],
        [(b"authorization-bin", b"Bearer " + TOKEN.encode())],
        [(b"x-token", b"Bearer " + TOKEN.encode())],
    ],
)
def test_only_the_exact_header_is_accepted(headers: list[Any], start: Callable[[SecuritySettings], str]) -> None:
    client = flight.connect(start(SecuritySettings(token=TOKEN)))
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(client.do_action(flight.Action("status", b""), flight.FlightCallOptions(timeout=30, headers=headers)))


def test_a_token_file_can_have_the_next_token_too(
    start: Callable[[SecuritySettings], str], app: AppLog, tmp_path: Path
) -> None:
    both, new = tmp_path / "both", tmp_path / "new"
    both.write_text(f"{TOKEN}\n{OTHER_TOKEN}\n")
    new.write_text(f"{OTHER_TOKEN}\n")
    rotating, rotated = SecuritySettings(token_file=str(both)), SecuritySettings(token_file=str(new))
    address = start(rotating)
    for accepted in (SecuritySettings(token=TOKEN), rotating, rotated):
        with StateClient(address, 30.0, None, Credentials.of(accepted)) as client:
            assert client.status().name == "i0"
    assert "doesn't accept the token" in refused(start(rotated), rotating, app)  # it sends the first one, the old one


class Context:
    """What pyarrow shows a method of its call."""

    def __init__(self, callers: Callers, peer: str, *tokens: str) -> None:
        info = flight.CallInfo(flight.FlightMethod.DO_ACTION)
        self._call = callers.start_call(info, {"authorization": [f"Bearer {token}" for token in tokens]})
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def get_middleware(self, _: str) -> object:
        return self._call


def test_refused_calls_are_one_warning_per_address_and_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    callers = Callers([TOKEN.encode()], clock)

    def call(peer: str) -> None:
        with pytest.raises(flight.FlightUnauthenticatedError):
            callers.check(Context(callers, peer, OTHER_TOKEN))

    for port in range(50):
        call(f"ipv4:10.0.0.1:{port}")
        call(f"ipv6:%5Bfd00::2%5D:{port}")
    assert [record.args for record in caplog.records] == [("ipv4:10.0.0.1",), ("ipv6:%5Bfd00::2%5D",)]
    clock.advance(61)
    call("ipv4:10.0.0.1:7")
    assert len(caplog.records) == 3
    assert "hush" not in caplog.text
    for number in range(3_000):  # from ever new addresses
        call(f"ipv4:10.1.{number // 256}.{number % 256}:1")
    assert len(caplog.records) < 1_100
    callers.check(Context(callers, "ipv4:10.0.0.1:1", TOKEN))


def test_refused_calls_are_counted(start: Callable[[SecuritySettings], str], app: AppLog) -> None:
    def count() -> float:
        return metrics.REGISTRY.get_sample_value("holdfast_state_calls_refused_total") or 0.0

    address, before = start(SecuritySettings(token=TOKEN)), count()
    refused(address, SecuritySettings(), app)
    assert count() == before + 1


# --- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READS)
def test_with_certificates_every_call_is_encrypted(
    read: str, start: Callable[[SecuritySettings], str], ca: Authority, app: AppLog
) -> None:
    address = start(ca.issue())
    assert address.startswith("grpc+tls://127.0.0.1:")
    with StateClient(address, 30.0, None, Credentials.of(ca.issue("client.example"))) as client:
        READS[read](client, app)


@pytest.mark.parametrize("read", READS)
def test_a_server_that_is_not_trusted_is_named(
    read: str, start: Callable[[SecuritySettings], str], ca: Authority, other_ca: Authority, app: AppLog
) -> None:
    address = start(ca.issue())
    text = refused(address, ca.issue(ca_file=other_ca.file), app, read)
    assert f"the certificate of the instance at {address} isn't accepted here: " in text
    assert "signed by the CA in security.tls_ca_file of this process" in text


@pytest.mark.parametrize("read", READS)
def test_a_client_of_another_ca_is_refused(
    read: str, start: Callable[[SecuritySettings], str], ca: Authority, other_ca: Authority, app: AppLog
) -> None:
    text = refused(start(ca.issue()), other_ca.issue(ca_file=ca.file), app, read)
    assert "closes the connection when this process shows its certificate" in text
    assert "signed by the CA in security.tls_ca_file of that instance" in text


def test_an_expired_certificate_is_named_on_both_sides(
    start: Callable[[SecuritySettings], str], ca: Authority, app: AppLog
) -> None:
    text = refused(start(ca.issue(expired=True)), ca.issue(), app)
    assert "certificate has expired. Renew it, and restart that instance." in text
    text = refused(start(ca.issue()), ca.issue(expired=True), app)
    assert "closes the connection when this process shows its certificate" in text and "not have expired" in text


def test_a_certificate_must_name_the_host(start: Callable[[SecuritySettings], str], ca: Authority, app: AppLog) -> None:
    text = refused(start(ca.issue("elsewhere.example")), ca.issue(), app)
    assert "IP address mismatch" in text and "subject alternative name" in text


@pytest.mark.parametrize("read", READS)
def test_a_client_without_tls_does_not_reach_an_instance_with_it(
    read: str, start: Callable[[SecuritySettings], str], ca: Authority, app: AppLog
) -> None:
    address = start(ca.issue())
    for written in (address, address.replace("grpc+tls", "grpc")):
        text = refused(written, SecuritySettings(), app, read)
        assert "uses TLS, and this process has no certificate. Set security.tls_cert_file" in text


@pytest.mark.parametrize("read", READS)
def test_a_client_with_tls_never_calls_without_it(
    read: str, start: Callable[[SecuritySettings], str], ca: Authority, app: AppLog
) -> None:
    address = start(SecuritySettings(token=TOKEN))
    assert address.startswith("grpc://")  # whoever has written this address, the token isn't sent in the clear
    text = refused(address, replace(ca.issue(), token=TOKEN), app, read)
    assert "doesn't use TLS, and this process has a certificate" in text


def test_token_and_certificate_can_be_asked_for_together(
    start: Callable[[SecuritySettings], str], ca: Authority, app: AppLog
) -> None:
    address = start(replace(ca.issue(), token=TOKEN))
    assert "asks for a token" in refused(address, ca.issue(), app)
    with StateClient(address, 30.0, None, Credentials.of(replace(ca.issue(), token=TOKEN))) as client:
        assert client.status().name == "i0"


def test_an_instance_that_is_down_is_unavailable_not_refused(app: AppLog, tmp_path: Path, ca: Authority) -> None:
    security = replace(ca.issue(), token=TOKEN)
    with Process(config_of(app, tmp_path, security=security)) as process:
        with StateClient(process.addresses()["flight"], 10.0, None, Credentials.of(security)) as client:
            until(lambda: client.status().ready, "it is restored")
            process.kill()
            for _ in range(2):
                with pytest.raises(InstanceUnavailable, match="can't be reached"):
                    client.status()


def test_a_task_that_is_refused_fails_at_once(start: Callable[[SecuritySettings], str], app: AppLog) -> None:
    address = start(SecuritySettings(token=TOKEN))
    locations = StateLocations(
        log_url="",
        log_id=app.log.id,
        app_file=1,
        log_options={},
        fsync=False,
        replicas={str(TASK): (address,)},
        deadline=timedelta(days=1),  # for which it would be tried again, if the error could pass
        retry=RetrySettings(),
    )
    with pytest.raises(NotAuthenticated, match="asks for a token"):
        RemoteState(locations, TASK, app.version).get("counts", KEYS)
    known = replace(locations, credentials=Credentials.of(SecuritySettings(token=TOKEN)))
    assert len(RemoteState(pickle.loads(pickle.dumps(known)), TASK, app.version).get("counts", KEYS)) == len(KEYS)
    assert "hush" not in repr(known)


# --- where an instance may listen ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_an_instance_that_others_reach_needs_credentials(host: str, app: AppLog, tmp_path: Path) -> None:
    with pytest.raises(Unprotected, match=r"instance 'one' would listen on .* Set security.token_file, or"):
        Instance(config_of(app, tmp_path, host=host)).start()


def test_an_instance_with_a_token_may_listen_anywhere(app: AppLog, tmp_path: Path) -> None:
    with running(config_of(app, tmp_path, host="0.0.0.0", security=SecuritySettings(token=TOKEN))) as instance:
        address = instance.address.replace("0.0.0.0", "127.0.0.1")
        with StateClient(address, 30.0, None, instance.credentials) as client:
            assert client.status().name == "one"


@pytest.mark.parametrize(
    ("host", "only_here"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.1.2.3", False)]
)
def test_loopback_is_known_by_the_address(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here


# --- reading credentials ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n", "short", "fifteen-letters", "with-an-umlaut-äöü-in-it", f"{TOKEN}\nhush"])
def test_a_token_that_is_not_one_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    for security in (SecuritySettings(token_file=str(file)), SecuritySettings(token=text)):
        with pytest.raises(SettingsError, match="must have one token per line.*openssl rand") as caught:
            Credentials.of(security)
        assert "hush" not in str(caught.value)


def test_files_that_are_missing_or_wrong_are_named(ca: Authority, tmp_path: Path) -> None:
    def fails(security: SecuritySettings) -> str:
        with pytest.raises(SettingsError) as caught:
            Credentials.of(security)
        return str(caught.value)

    good = ca.issue()
    absent, junk = str(tmp_path / "absent"), tmp_path / "junk"
    junk.write_bytes(b"-----BEGIN CERTIFICATE-----\n\xff\n")
    assert f"security.token_file = {absent} can't be read: No such file" in fails(SecuritySettings(token_file=absent))
    assert f"security.tls_key_file = {absent} can't be read" in fails(replace(good, tls_key_file=absent))
    another = ca.issue().tls_key_file
    for wrong in (replace(good, tls_key_file=another), replace(good, tls_cert_file=str(junk))):
        assert "are not a certificate and its private key" in fails(wrong)
    assert f"security.tls_ca_file = {junk} has no certificate" in fails(replace(good, tls_ca_file=str(junk)))


def test_credentials_are_never_shown(
    ca: Authority, app: AppLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    credentials = Credentials.of(replace(ca.issue(), token=TOKEN))
    for shown in (repr(credentials), str(credentials), repr(credentials.certificate), f"{credentials!r}"):
        assert "hush" not in shown and "PRIVATE KEY" not in shown and "BEGIN" not in shown
    config = config_of(app, tmp_path, security=SecuritySettings(token=TOKEN))
    assert "hush" not in repr(config)
    assert decode(encode(config)).security.token == TOKEN
    assert not NO_CREDENTIALS and copy.copy(credentials) == credentials
    assert "hush" not in caplog.text


def test_an_instance_does_not_start_with_wrong_credentials(app: AppLog, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="can't be read"):
        Instance(config_of(app, tmp_path, security=SecuritySettings(token_file=str(tmp_path / "absent"))))
