"""What a process proves by that it belongs to the app: tokens, and a certificate with its key.

The same credentials serve both sides. As a client a process sends its first token and shows its certificate; as an
instance it accepts each of its tokens, and certificates that its CA has signed. They are read once, at the start, and
travel to Spark's workers as a value, so that no file is needed on their hosts. Nothing prints them.
"""

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from holdfast.errors import ErrorCategory, HoldfastError, SettingsError
from holdfast.settings.security import SecuritySettings
from holdfast.settings.units import HIDDEN

_TOKEN = re.compile(r"[\x21-\x7e]{16,4096}")
_PLAIN, _TLS = "grpc", "grpc+tls"
MAKE_ONE = "`openssl rand -hex 32` makes one"


class NotAuthenticated(HoldfastError):
    """An instance and its client don't accept each other. No retry changes that."""

    category = ErrorCategory.INVALID


class Unprotected(HoldfastError):
    """Other machines could reach an address where nobody is asked who they are."""

    category = ErrorCategory.INVALID


@dataclass(frozen=True, repr=False)
class Certificate:
    """A certificate with its key, and the certificates of the CA that the other side's must be from. All are PEM."""

    cert: bytes
    key: bytes
    ca: bytes

    @classmethod
    def read(cls, cert_file: str, key_file: str, ca_file: str) -> Self:
        """Reads the files, and checks that they belong together: gRPC would only say that a server didn't start."""
        cert, key, ca = checked_pem("security", cert_file, key_file, ca_file)
        return cls(cert, key, ca)


@dataclass(frozen=True, repr=False)
class Credentials:
    """The credentials of one process; without any, it neither sends nor asks for one.

    >>> Credentials((b"0123456789abcdef",))
    Credentials(tokens=******, certificate=None)
    """

    tokens: tuple[bytes, ...] = ()
    """All are accepted, and the first is sent."""
    certificate: Certificate | None = None

    @classmethod
    def of(cls, settings: SecuritySettings) -> Self:
        """Reads the credentials that the settings name."""
        text, place = settings.token, "security.token"
        if settings.token_file is not None:
            place = f"security.token_file = {settings.token_file}"
            text = _read(settings.token_file, "security.token_file").decode("utf-8", errors="replace")
        certificate = None
        if settings.tls_cert_file and settings.tls_key_file and settings.tls_ca_file:
            certificate = Certificate.read(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
        return cls(() if text is None else _tokens(text, place), certificate)

    def check_host(self, what: str, host: str) -> None:
        """Raises if other machines can reach a host of this one and nobody is asked who they are."""
        if not self:
            remedy = "Set security.token_file, or the three security.tls_ files, or have it listen on 127.0.0.1."
            check_protected(what, host, remedy)

    def __bool__(self) -> bool:
        return bool(self.tokens) or self.certificate is not None

    def __repr__(self) -> str:
        tokens, certificate = HIDDEN if self.tokens else "()", HIDDEN if self.certificate else None
        return f"Credentials(tokens={tokens}, certificate={certificate})"

    def address(self, host: str, port: int) -> str:
        """The address of an instance with these credentials."""
        return f"{_TLS if self.certificate else _PLAIN}://{host}:{port}"

    def address_for(self, address: str) -> str:
        """The address as a process with these credentials calls it.

        One with a certificate never calls without TLS, whatever an address says: it would send its token in the clear,
        and could not know who answers.
        """
        scheme, _, place = address.partition("://")
        if self.certificate is None and scheme == _TLS:
            raise NotAuthenticated(
                f"the instance at {address} uses TLS, and this process has no certificate. Set security.tls_cert_file, "
                "security.tls_key_file and security.tls_ca_file."
            )
        return address if self.certificate is None else f"{_TLS}://{place}"


NO_CREDENTIALS = Credentials()


def check_protected(what: str, host: str, remedy: str) -> None:
    """Raises if other machines can reach an address of this one, or may be able to."""
    if not is_loopback(host):
        raise Unprotected(
            f"{what} would listen on {host!r}, where other machines can reach it, without asking who they are. "
            f"{remedy} See docs/security.md."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name is one if all its addresses are.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("no.such.invalid")
    (True, True, False, False)
    """
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(host) and all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)


def checked_pem(section: str, cert_file: str, key_file: str, ca_file: str | None) -> tuple[bytes, bytes, bytes]:
    """The contents of the files that the `tls_` settings of a section name, if they belong together.

    Without a file of a CA, its content is empty.
    """
    cert = _read(cert_file, f"{section}.tls_cert_file")
    key = _read(key_file, f"{section}.tls_key_file")
    ca = b"" if ca_file is None else _read(ca_file, f"{section}.tls_ca_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_cert_chain(cert_file, key_file, password=lambda: b"")
    except (ssl.SSLError, ValueError):
        raise SettingsError(
            f"{section}.tls_cert_file = {cert_file} and {section}.tls_key_file = {key_file} are not a certificate "
            "and its private key in PEM, without a password. Set them to such files."
        ) from None
    try:
        if ca_file is not None:
            context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise SettingsError(
            f"{section}.tls_ca_file = {ca_file} has no certificate in PEM. Set it to the file of the CA that has "
            "signed the certificates of this app."
        ) from None
    return cert, key, ca


def _tokens(text: str, place: str) -> tuple[bytes, ...]:
    found = text.split()
    if not found or not all(map(_TOKEN.fullmatch, found)):
        raise SettingsError(
            f"{place} must have one token per line, each of 16 to 4,096 ASCII letters, digits and signs; {MAKE_ONE}."
        )
    return tuple(token.encode("ascii") for token in found)


def _read(file: str, setting: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{setting} = {file} can't be read: {error.strerror}. Set it to a file that this process may read."
        ) from None
