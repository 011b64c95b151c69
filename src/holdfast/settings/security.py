"""The section `security`: by what the instances of an app, its driver and its tasks know each other."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.errors import SettingsError
from holdfast.settings.declare import InKafkaStreams, Section

_TLS_FILES = ("tls_cert_file", "tls_key_file", "tls_ca_file")


@dataclass(frozen=True, kw_only=True, repr=False)
class SecuritySettings(Section):
    """How instances, the driver and tasks authenticate each other: by a token, by mutual TLS, or by both."""

    section: ClassVar[str] = "security"

    token_file: Annotated[
        str | None,
        "A file with the token that every call of an instance must have. Several lines are several tokens: the first "
        "is sent, and all are accepted.",
        InKafkaStreams("`sasl.jaas.config`"),
    ] = None
    token: Annotated[
        str | None,
        "The token itself, for an environment variable. It is never shown.",
        InKafkaStreams("`sasl.jaas.config`"),
    ] = None
    tls_cert_file: Annotated[
        str | None,
        "A PEM file with the certificate of this process, and those between it and the CA. With the three `tls_` "
        "files, all calls are encrypted and both sides show a certificate.",
        InKafkaStreams("`ssl.keystore.location`"),
    ] = None
    tls_key_file: Annotated[
        str | None,
        "A PEM file with the private key of that certificate, without a password.",
        InKafkaStreams("`ssl.keystore.key`"),
    ] = None
    tls_ca_file: Annotated[
        str | None,
        "A PEM file with the certificates of the CA that signs the certificates of this app, and of nothing else.",
        InKafkaStreams("`ssl.truststore.location`"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is not None and self.token_file is not None:
            raise SettingsError("security.token and security.token_file are both set. Remove one of them.")
        missing = [self.path(name) for name in _TLS_FILES if getattr(self, name) is None]
        if 0 < len(missing) < len(_TLS_FILES):
            raise SettingsError(
                f"{' and '.join(missing)} must be set too: TLS is always mutual, so that it needs a certificate, its "
                "key and the CA. Set all three, or none."
            )
