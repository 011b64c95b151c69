"""The section `rest`: where instances answer queries over HTTP, whom they answer, and how much at a time."""

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.errors import SettingsError
from holdfast.settings.declare import Between, InKafkaStreams, Section
from holdfast.settings.units import Duration, Size

ANY_HOST = "*"
_HOST_NAME = re.compile(r"[^\s:/*]+|\*")
_NO_HTTP = InKafkaStreams("none: Kafka Streams has no HTTP server")


@dataclass(frozen=True, kw_only=True, repr=False)
class RestSettings(Section):
    """Where an instance answers queries over HTTP, and whom."""

    section: ClassVar[str] = "rest"

    enabled: Annotated[bool, "Whether instances answer queries over HTTP.", _NO_HTTP] = True
    host: Annotated[
        str,
        "The address to listen on. Any address other than loopback needs tokens, client certificates, or "
        "`rest.insecure`.",
        InKafkaStreams("`application.server`"),
    ] = "127.0.0.1"
    port: Annotated[
        int, "The port to listen on; 0 uses any free port.", InKafkaStreams("`application.server`"), Between(0, 65_535)
    ] = 8080
    insecure: Annotated[
        bool,
        "Whether HTTP may be served to other machines without authentication. Every one that reaches the address can "
        "then read every store.",
        _NO_HTTP,
    ] = False
    tokens_file: Annotated[
        str | None,
        "A file with the tokens of clients: per line a name, a token, its scopes (`read:STORE`, `read:*`, `admin`, "
        "separated by commas) and, optionally, when it expires. A changed file is read again within a second. "
        "See docs/security.md.",
        _NO_HTTP,
    ] = None
    tokens: Annotated[
        str | None,
        "The same lines as text, for an environment variable. They are never shown.",
        _NO_HTTP,
    ] = None
    tls_cert_file: Annotated[
        str | None,
        "A PEM file with the certificate of the HTTP server, and those between it and its CA. With it and its key, "
        "queries are answered over HTTPS only.",
        _NO_HTTP,
    ] = None
    tls_key_file: Annotated[
        str | None, "A PEM file with the private key of that certificate, without a password.", _NO_HTTP
    ] = None
    tls_ca_file: Annotated[
        str | None,
        "A PEM file with the certificates of a CA. With it, every client has to show a certificate that the CA has "
        "signed: mutual TLS.",
        _NO_HTTP,
    ] = None
    cors_origins: Annotated[
        str | None,
        "The origins whose pages may ask from a browser, separated by commas, such as `https://dash.example.com`; `*` "
        "is every page. If not set, browsers let no page of another origin read an answer.",
        _NO_HTTP,
    ] = None
    allowed_hosts: Annotated[
        str | None,
        "The host names by which clients may ask, separated by commas, such as that of a proxy which passes on its own "
        "`Host`; `*` is every name. Addresses, `localhost` and `rest.host` need not be named. If not set, other names "
        "are refused where clients don't authenticate and only this machine reaches `rest.host`, and accepted "
        "elsewhere. See docs/security.md.",
        _NO_HTTP,
    ] = None
    max_body: Annotated[
        Size, "The maximum size of the body of a request. A larger one gets status 413.", _NO_HTTP, Between(1, 1 << 30)
    ] = Size("1MiB")
    max_page: Annotated[
        Size,
        "How many bytes of entries an answer has at most. A page of a range ends there, with its cursor; many keys in "
        "one request get status 413.",
        _NO_HTTP,
        Between(1, 1 << 30),
    ] = Size("16MiB")
    max_requests: Annotated[
        int,
        "How many requests an instance works on at a time; further ones get status 503. Health, metrics and state are "
        "always answered, and lookups of keys that it has itself have a limit of their own, `rest.max_lookups`. See "
        "docs/queries.md.",
        _NO_HTTP,
        Between(1, 100_000),
    ] = 128
    max_requests_per_caller: Annotated[
        int,
        "How many of them may be of one caller, which is a token, or an address where there are no tokens; further "
        "ones get status 429.",
        _NO_HTTP,
        Between(1, 100_000),
    ] = 64
    max_lookups: Annotated[
        int,
        "How many lookups of keys that it has itself an instance answers at a time. If more of them wait, the others "
        "get status 503.",
        _NO_HTTP,
        Between(1, 100_000),
    ] = 128
    max_connections: Annotated[
        int,
        "How many connections an instance has open. Beyond that, the one that has been idle the longest is closed for "
        "a new one; if none is idle, the new one gets status 503, and over HTTPS is closed.",
        _NO_HTTP,
        Between(1, 100_000),
    ] = 4_000
    max_connections_per_address: Annotated[
        int,
        "How many of them may be of one address. Beyond that, the one of this address that has been idle the longest "
        "is closed for a new one; if none is idle, the new one gets status 429, and over HTTPS is closed.",
        _NO_HTTP,
        Between(1, 100_000),
    ] = 2_000
    max_unfinished: Annotated[
        Size,
        "How many bytes of requests that aren't whole, or wait behind others of their connection, an instance keeps, "
        "for all connections together; one address may have a quarter of it. Beyond that, the connection with the "
        "most gets status 503 or 429.",
        _NO_HTTP,
        Between(1 << 20, 1 << 40),
    ] = Size("16MiB")
    max_unread: Annotated[
        Size,
        "How many bytes of answers that clients haven't read an instance keeps, for all of them together. Beyond that, "
        "large answers get status 503, and streams wait.",
        _NO_HTTP,
        Between(1 << 20, 1 << 40),
    ] = Size("256MiB")
    max_unread_per_caller: Annotated[
        Size,
        "How many of these bytes may be for one caller, which is a token, or an address where there are no tokens. "
        "Beyond that, large answers get status 429. It is less while others have much: at most what is left.",
        _NO_HTTP,
        Between(1 << 20, 1 << 40),
    ] = Size("128MiB")
    max_streams: Annotated[
        int,
        "How many answers without an end that is known, such as watches, an instance sends at a time; further ones "
        "get status 503.",
        _NO_HTTP,
        Between(0, 100_000),
    ] = 2_000
    max_scans: Annotated[
        int,
        "How many of them may be of stores as a whole (scans, dataframes), which take a few MB each while they are "
        "read; further ones get status 503.",
        _NO_HTTP,
        Between(0, 100_000),
    ] = 100
    max_streams_per_caller: Annotated[
        int,
        "How many of them may be of one caller, which is a token, or an address where there are no tokens; further "
        "ones get status 429.",
        _NO_HTTP,
        Between(0, 100_000),
    ] = 1_000
    timeout: Annotated[
        Duration,
        "How long a request may take until its answer begins. Beyond that it is ended, and gets status 503.",
        InKafkaStreams("none: `request.timeout.ms` is for calls of brokers"),
        Between("10ms", "1d"),
    ] = Duration("30s")
    driver_metrics_port: Annotated[
        int,
        "The port on which the driver serves its own `/metrics`, on the same host, to the same clients; 0 uses any "
        "free port. `app.metrics_address` has the address.",
        InKafkaStreams("none: metrics are JMX beans"),
        Between(0, 65_535),
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens is not None and self.tokens_file is not None:
            raise SettingsError("rest.tokens and rest.tokens_file are both set. Remove one of them.")
        if self.allowed_hosts is not None and not all(map(_HOST_NAME.fullmatch, self.host_names)):
            raise SettingsError(
                f"rest.allowed_hosts = {self.allowed_hosts} must be names of hosts, without https:// and without a "
                "port, separated by commas, such as state.example.com; or *."
            )
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            missing = "rest.tls_cert_file" if self.tls_cert_file is None else "rest.tls_key_file"
            raise SettingsError(f"{missing} must be set too: HTTPS needs a certificate and its key.")
        if self.tls_ca_file is not None and self.tls_cert_file is None:
            raise SettingsError(
                "rest.tls_ca_file is set without rest.tls_cert_file and rest.tls_key_file: clients show certificates "
                "over HTTPS only. Set all three, or remove it."
            )

    @property
    def host_names(self) -> tuple[str, ...]:
        """The names in `allowed_hosts`."""
        return (
            () if self.allowed_hosts is None else tuple(each.strip() for each in self.allowed_hosts.lower().split(","))
        )

    @property
    def authenticates(self) -> bool:
        """Whether clients have to show who they are."""
        return self.tokens is not None or self.tokens_file is not None or self.tls_ca_file is not None
