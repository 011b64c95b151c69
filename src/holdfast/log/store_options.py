"""The options of an object storage: the names that its users know, translated to obstore's.

Each storage takes its options as its own tools and environment variables spell them, in any case: `endpoint`,
`aws_endpoint`, `AWS_ENDPOINT_URL` and `endpoint_url` are one. Names are checked here, because obstore ends the process
for some wrong ones. Options that aren't given are taken from the environment by obstore.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from holdfast.errors import SettingsError, did_you_mean

_SWITCHES: Final = {"allow_http", "allow_invalid_certificates", "http1_only", "http2_only", "randomize_addresses"}
_CLIENT: Final = _SWITCHES | {"connect_timeout", "timeout", "read_timeout", "pool_idle_timeout", "proxy_url",
    "proxy_ca_certificate", "proxy_excludes", "root_certificate", "user_agent", "pool_max_idle_per_host"}  # fmt: skip
"""Options of the HTTP client, the same for all storages."""


@dataclass(frozen=True)
class Names:
    """The options of one kind of storage."""

    prefixes: tuple[str, ...]
    """What its environment variables start with, the longest first."""
    names: frozenset[str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names without the prefix → obstore's."""

    def find(self, given: str) -> str | None:
        """obstore's name of an option; None if there is no such option."""
        plain = self.plain(given)
        name = self.aliases.get(plain, plain)
        return name if name in self.names or name in _CLIENT else None

    def plain(self, given: str) -> str:
        """A name in lower case and without its prefix."""
        name = given.lower()
        return name.removeprefix(next((prefix for prefix in self.prefixes if name.startswith(prefix)), ""))

    def all(self) -> set[str]:
        return {*self.names, *self.aliases, *_CLIENT}


S3: Final = Names(
    ("aws_",),
    frozenset({"access_key_id", "secret_access_key", "session_token", "region", "default_region", "endpoint",
        "virtual_hosted_style_request", "skip_signature", "unsigned_payload", "checksum_algorithm", "conditional_put",
        "copy_if_not_exists", "disable_tagging", "disable_bulk_delete", "request_payer", "role_arn",
        "role_session_name", "web_identity_token_file", "sts_endpoint", "metadata_endpoint",
        "container_credentials_relative_uri", "container_credentials_full_uri", "container_authorization_token_file",
        "server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled"}),
    {"endpoint_url": "endpoint", "endpoint_url_s3": "endpoint", "region_name": "region", "token": "session_token",
        "security_token": "session_token", "access_key": "access_key_id", "secret_key": "secret_access_key"},
)  # fmt: skip
GCS: Final = Names(
    ("google_", "gcs_"),
    frozenset({"service_account", "service_account_key", "application_credentials", "bearer_token", "base_url",
        "skip_signature"}),
    {"service_account_path": "service_account", "service_account_file": "service_account", "token": "bearer_token",
        "credentials": "application_credentials"},
)  # fmt: skip
AZURE: Final = Names(
    ("azure_storage_", "azure_"),
    frozenset({"account_name", "account_key", "client_id", "client_secret", "tenant_id", "authority_host", "sas_key",
        "token", "credential_type", "endpoint", "use_emulator", "use_fabric_endpoint", "use_azure_cli", "msi_endpoint",
        "object_id", "msi_resource_id", "federated_token_file", "skip_signature", "disable_tagging", "encryption_key",
        "fabric_token_service_url", "fabric_workload_host", "fabric_session_token", "fabric_cluster_identifier"}),
    {"account": "account_name", "key": "account_key", "access_key": "account_key", "sas_token": "sas_key",
        "tenant": "tenant_id", "authority_id": "tenant_id", "identity_endpoint": "msi_endpoint"},
)  # fmt: skip

_KINDS: Final = {"s3": S3, "s3a": S3, "gs": GCS, "az": AZURE, "azure": AZURE, "abfs": AZURE, "abfss": AZURE}

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class StoreOptions:
    """Options as obstore takes them: those of the storage, and those of its HTTP client."""

    store: dict[str, str]
    client: dict[str, Any]


def options_for(scheme: str, options: Mapping[str, str], environment: Mapping[str, str] = _EMPTY) -> StoreOptions:
    """The options of a storage with this scheme. Only the endpoint is looked up in the environment.

    >>> options_for("s3", {"AWS_ENDPOINT_URL": "http://localhost:9000", "region_name": "eu-1"})
    StoreOptions(store={'endpoint': 'http://localhost:9000', 'region': 'eu-1'}, client={'allow_http': True})
    >>> options_for("gs", {"servce_account": "key.json"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    holdfast.errors.SettingsError: gs:// has no option 'servce_account'. Did you mean 'service_account'? ...
    """
    names = _KINDS[scheme]
    store: dict[str, str] = {}
    client: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for given, value in options.items():
        name = names.find(given)
        if name is None:
            raise SettingsError(
                f"{scheme}:// has no option {given!r}. {did_you_mean(names.plain(given), names.all())}Its options are "
                f"{', '.join(sorted(names.names))}; for the HTTP client: {', '.join(sorted(_CLIENT))}."
            )
        if name in given_as:
            raise SettingsError(f"log.options has {given_as[name]!r} and {given!r}, which are the same. Keep one.")
        given_as[name] = given
        if name in _CLIENT:
            client[name] = _switch(given, value) if name in _SWITCHES else value
        else:
            store[name] = value
    endpoint = store.get("endpoint", "https://")
    if not endpoint.startswith(("http://", "https://")):
        raise SettingsError(f"log.options {given_as['endpoint']} is {endpoint!r}. Write http:// or https:// before it.")
    if "endpoint" not in store and names is S3:
        endpoint = next((environment[name] for name in _ENDPOINTS if name in environment), endpoint)
    if endpoint.startswith("http://"):
        client.setdefault("allow_http", True)
    return StoreOptions(store, client)


def _switch(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise SettingsError(f"log.options {name} is {value!r}. Use 'true' or 'false'.")
    return value.lower() == "true"
