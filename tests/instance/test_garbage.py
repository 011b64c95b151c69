"""Requests that no client of ours would send: an instance refuses them, goes on, and says nothing about itself."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.instance.client import StateClient
from holdfast.instance.instance import Instance
from holdfast.instance.messages import InstanceUnavailable, decode_error
from tests.instance.app_log import TASK, AppLog
from tests.instance.test_hosting import running
from tests.instance.test_process import config_of

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ACTIONS = (
    "get",
    "count",
    "status",
    "committed",
    "due",
    "events",
    "app_state",
    "peers",
    "host",
    "drop",
    "other",
    "",
    "é",
)

numbers = st.one_of(st.integers(), st.floats(max_value=0.01), st.just(2**63), st.just(-1))
texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["0_0", "0_1", "9_9", "counts", "other", "../..", "\x00", "0_-1"])
)
wild = st.one_of(
    st.none(), st.booleans(), numbers, texts, st.lists(texts, max_size=3), st.dictionaries(texts, texts, max_size=2)
)
FIELDS = ("task", "store", "version", "log", "do", "start", "stop", "reverse", "limit", "key", "since", "life", "state",
          "cause", "addresses", "role")  # fmt: skip
likely: dict[str, st.SearchStrategy[Any]] = {
    "task": st.just(str(TASK)),
    "store": st.just("counts"),
    "version": st.sampled_from([None, 0, 1, 2]),
    "do": st.sampled_from(["get", "scan"]),
    "start": st.just(""),
    "stop": st.none(),
    "reverse": st.booleans(),
    "limit": st.sampled_from([None, -1, 0, 1, 2**70]),
    "key": st.sampled_from(["", "AA==", "?"]),
}
requests = st.fixed_dictionaries(
    {"wait": st.floats(max_value=0.01) | st.just(0.0)},
    optional={name: likely[name] | wild if name in likely else wild for name in FIELDS},
)
nearly = st.fixed_dictionaries({"wait": st.just(0.0)} | likely)
bodies = st.one_of(
    st.binary(max_size=60), (requests | nearly).map(lambda found: json.dumps(found).encode()), st.just(b"[" * 100_000)
)
columns = st.sampled_from(
    [
        pa.array([b"\x01a", None, b""], pa.binary()),
        pa.array(["a", "b", "c"]),
        pa.array([1, 2, 3]),
        pa.array([b"a", b"b", b"c"], pa.large_binary()),
        pa.array([[b"x"], [], None]),
        pa.array([b"a", b"a", b"b"]).dictionary_encode(),
        pa.nulls(3),
    ]
)
tables = st.lists(columns, max_size=3).map(lambda found: pa.table(found, names=[f"c{n}" for n in range(len(found))]))


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    folder = tmp_path_factory.mktemp("garbage")
    app = AppLog(str(folder / "log"))
    app.grow(3, seed=1)
    with running(config_of(app, folder)) as instance:
        assert instance.wait_ready(30)
        yield instance


def check(instance: Instance, call: Callable[[flight.FlightClient, flight.FlightCallOptions], object]) -> None:
    """The call is answered, or refused with a short error; and then the instance still answers."""
    client = flight.connect(instance.address)
    try:
        call(client, flight.FlightCallOptions(timeout=30))
    except flight.FlightTimedOutError:
        raise
    except (flight.FlightError, OSError) as error:
        said = decode_error(getattr(error, "extra_info", b""))
        for text in (str(error), str(said)):
            for inside in (
                "Traceback",
                'File "',
                ".py",
                ".pyx",
                str(Path.cwd()),
                instance.config.state_dir,
                "site-packages",
            ):
                assert inside not in text
    with StateClient(instance.address, 30.0) as own:
        assert own.status().name == "one"


@MANY
@given(st.sampled_from(ACTIONS), bodies)
@example("events", b'{"since": 9223372036854775807, "wait": 0}')
@example("events", b'{"since": 0, "wait": 1e300}')
@example("due", b'{"version": 9, "tasks": ["0_0"], "wait": 1e300}')
def test_any_action(instance: Instance, caplog: pytest.LogCaptureFixture, name: str, body: bytes) -> None:
    check(instance, lambda client, options: list(client.do_action(flight.Action(name, body), options)))
    assert "a call failed" not in caplog.text  # that would be a fault of ours


@MANY
@given(bodies)
def test_any_ticket(instance: Instance, caplog: pytest.LogCaptureFixture, ticket: bytes) -> None:
    check(instance, lambda client, options: client.do_get(flight.Ticket(ticket), options).read_all())
    assert "a call failed" not in caplog.text  # that would be a fault of ours


@MANY
@given(bodies, tables, st.booleans())
def test_any_exchange(
    instance: Instance, caplog: pytest.LogCaptureFixture, command: bytes, table: pa.Table, finished: bool
) -> None:
    def exchange(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(command), options)
        with writer:
            writer.begin(table.schema)
            writer.write_table(table)
            if finished:
                writer.done_writing()
                reader.read_all()

    check(instance, exchange)
    assert "a call failed" not in caplog.text  # that would be a fault of ours


def test_an_exchange_without_data(instance: Instance) -> None:
    def exchange(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("a", "b"), options)
        writer.done_writing()
        reader.read_all()

    check(instance, exchange)


@pytest.mark.parametrize(
    "call",
    [
        lambda client, options: list(client.list_flights(b"", options)),
        lambda client, options: list(client.list_actions(options)),
        lambda client, options: client.get_flight_info(flight.FlightDescriptor.for_command(b""), options),
        lambda client, options: client.get_schema(flight.FlightDescriptor.for_command(b""), options),
        lambda client, options: client.do_put(flight.FlightDescriptor.for_path("a"), pa.schema([]), options)[0].close(),
        lambda client, options: client.authenticate_basic_token("a", "b", options),
    ],
)
def test_methods_that_an_instance_does_not_have(
    instance: Instance, call: Callable[[flight.FlightClient, flight.FlightCallOptions], object]
) -> None:
    with pytest.raises((flight.FlightError, OSError), match="no such method"):
        call(flight.connect(instance.address), flight.FlightCallOptions(timeout=30))
    check(instance, call)


@pytest.mark.parametrize(
    "address", ["", "x", "grpc://", "grpc://[", "grpc://127.0.0.1:x", "grpc+tcp://127.0.0.1:99999", "http://x"]
)
def test_an_address_that_is_none_is_unavailable(address: str) -> None:
    with pytest.raises(InstanceUnavailable, match="can't be reached"), StateClient(address, 5.0) as client:
        client.status()
