"""`spark.read.format("holdfast")`: a store at a version as a batch DataFrame, one Spark partition per task.

    spark.read.format("holdfast").option("app", "game").load("players")

The schema comes from the app's log. When a DataFrame is first planned, one instance is asked to hold a version; each
Spark task then reads its partition at that version, so that all of them read the same state however late they start.
Spark plans a source once per DataFrame: further actions read the same version, and fail once it is no longer held.
Spark finds the source by itself: it looks for packages whose names begin with `pyspark_`.

    app            the id of the app; with `log`, the folder or URL of its log, unless the settings say where
    address        instead of both: the REST address of an instance, such as http://127.0.0.1:8080
    store          the store, if `load()` has no argument
    path           what Spark makes of the argument of `load()`
    versionAsOf    a version that replicas still have; without it, the newest
    token          a token that may read the store; without it, HOLDFAST_CLIENT_TOKEN of the driver
    caFile         a file with the CA of the instances' certificates, on the driver and on workers
    certFile       a file with the certificate to show, if instances ask for one, and
    keyFile        its private key; both on the driver and on workers too
    holdSeconds    how long the version is held for the DataFrame: 600, the most, unless it is set
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from holdfast.client.errors import VersionGone
from holdfast.client.frames import ARROW_END
from holdfast.client.tokens import token_of
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.rest_calls import RestRefused, answered, reachable, rest_addresses
from holdfast.tls_files import TlsOptions, tls_of_files

if TYPE_CHECKING:
    from holdfast.log.log import Log

_OPTIONS = (
    "app",
    "log",
    "address",
    "store",
    "path",
    "versionAsOf",
    "token",
    "caFile",
    "certFile",
    "keyFile",
    "holdSeconds",
)
_TOKEN = "HOLDFAST_CLIENT_TOKEN"


class BadOption(HoldfastError):
    category = ErrorCategory.INVALID


class StreamCut(HoldfastError):
    """A stream ended before its end marker. Spark runs the task again."""

    category = ErrorCategory.RETRY


class HeldVersionGone(HoldfastError):
    """No replica has the version of a DataFrame any more."""

    category = ErrorCategory.INVALID

    def __init__(self, version: int, store: str, seconds: int) -> None:
        super().__init__(
            f"Version {version} of store {store!r} is gone: it was held for {seconds} s from the first action on the "
            "DataFrame, or the instance that held it has ended. Load the DataFrame again for the newest version, or "
            "cache() it with the first action."
        )


class _Held(msgspec.Struct):
    version: int
    partitions: int


@dataclass
class TaskPartition(InputPartition):
    """One task of the store, at the version of the job."""

    number: int
    version: int

    def __init__(self, number: int, version: int) -> None:
        self.number, self.version = number, version


@dataclass(frozen=True)
class _Target:
    """What the options say."""

    store: str
    app: str | None
    log: str | None
    address: str | None
    version: int | None
    token: str | None = field(repr=False)
    ca_file: str | None
    cert_file: str | None
    key_file: str | None
    seconds: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "_Target":
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _OPTIONS}
        if unknown := [name for name in given if name not in known]:
            raise BadOption(f"There is no option {unknown[0]!r} here. The options are {', '.join(_OPTIONS)}.")
        store = given.get("path") or given.get("store")
        if not store:
            raise BadOption('The store is missing. Write .load("players"), or .option("store", "players").')
        if ("app" in given) == ("address" in given):
            raise BadOption("Give either the id of the app, .option('app', ...), or .option('address', 'http://...').")
        version = given.get("versionasof")
        return cls(
            store=store,
            app=given.get("app"),
            log=given.get("log"),
            address=given.get("address"),
            version=None if version in (None, "latest") else _number("versionAsOf", version),
            token=_token(given.get("token")),
            ca_file=given.get("cafile"),
            cert_file=given.get("certfile"),
            key_file=given.get("keyfile"),
            seconds=_number("holdSeconds", given.get("holdseconds", "600")),
        )

    def opened(self) -> "Log":
        from holdfast.group_command import Target
        from holdfast.settings.load import load

        assert self.app is not None
        return Target(self.app, self.log or load(env=os.environ).settings.log_url(self.app), None).opened()[0]

    def ask(self, addresses: Sequence[str], path: str, *, method: str = "GET") -> AbstractContextManager[IO[bytes]]:
        """The answer of an instance to a request about the store."""
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        url = f"/v1/stores/{self.store}/{path}"
        # Made per request: it has no form in which Spark could send it to workers.
        tls = tls_of_files(TlsOptions("caFile", "certFile", "keyFile"), self.ca_file, self.cert_file, self.key_file)
        return answered(addresses, url, headers=headers, method=method, tls=tls)

    def addresses(self) -> list[str]:
        return [self.address] if self.address is not None else rest_addresses(self.opened())


class HoldfastSource(DataSource):
    """The data source, as Spark creates it."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        return from_arrow_schema(_arrow_schema(_Target.of(self.options)))

    def reader(self, schema: StructType) -> "StoreSparkReader":
        return StoreSparkReader(_Target.of(self.options))


class StoreSparkReader(DataSourceReader):
    """Reads one store."""

    def __init__(self, target: _Target) -> None:
        self._target = target
        self._addresses = target.addresses()
        self._host = socket.gethostname()

    def partitions(self) -> list[InputPartition]:
        target = self._target
        at = "" if target.version is None else f"&at={target.version}"
        try:
            with target.ask(self._addresses, f"hold?seconds={target.seconds}{at}", method="POST") as answer:
                held = msgspec.json.decode(answer.read(), type=_Held)
        except RestRefused as error:
            if error.error != VersionGone.error:
                raise
            raise BadOption(
                f"{error.message} Give one of them as the option versionAsOf, or leave it out for the newest version."
            ) from error
        return [TaskPartition(number, held.version) for number in range(held.partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, TaskPartition)
        path = f"arrow?partition={partition.number}&at={partition.version}"
        with self._asked_for(path, partition.version) as answer:
            file = _Ended(answer)
            yield from pa.ipc.open_stream(file)
            if file.last != ARROW_END:
                raise StreamCut(f"The answer to {path} was cut. The task is repeated; the instance's log says why.")

    @contextmanager
    def _asked_for(self, path: str, version: int) -> Iterator[IO[bytes]]:
        addresses = self._addresses
        if self._target.address is None:  # workers may be on another machine than the driver
            addresses = reachable([(address, self._host) for address in addresses])
        try:
            with self._target.ask(addresses, path) as answer:
                yield answer
        except RestRefused as error:
            if error.error != VersionGone.error:
                raise
            raise HeldVersionGone(version, self._target.store, self._target.seconds) from error


class _Ended:
    """A file that remembers its last bytes."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size)
        self.last = (self.last + data)[-len(ARROW_END) :]
        return data


def _arrow_schema(target: _Target) -> pa.Schema:
    if target.app is None:
        with target.ask(target.addresses(), "arrow?partition=0") as answer:
            return pa.ipc.open_stream(answer).schema
    from holdfast.query.store_specs import UnknownStore
    from holdfast.query.tables import table_of

    app = target.opened().app
    spec = app.store(target.store)
    if spec is None or spec.removed is not None:
        raise UnknownStore(target.store, app.id, sorted(each.name for each in app.current_stores))
    return table_of(spec).schema


def _token(given: str | None) -> str | None:
    if given is not None:
        return token_of(given, "The option 'token'")
    return token_of(text, _TOKEN) if (text := os.environ.get(_TOKEN)) else None


def _number(option: str, text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadOption(f"{option}={text!r} is not a number. Write .option({option!r}, 12).")
    return int(text)
