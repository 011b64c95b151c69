"""Why an instance can't be reached, found by a TLS handshake of our own.

gRPC has one error, "unavailable", for an instance that is down and for one that refuses our certificate, and a closed
socket is all it says about the second. The first may pass and the second never does, so a client looks again: Python's
TLS says what is wrong with the instance's certificate. That the instance refuses ours is seen by its closing the
connection, twice, where it would have sent something: it sends no reason.
"""

import os
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from socket import create_connection
from urllib.parse import urlsplit

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.instance.credentials import Certificate, Credentials

_SECONDS = 0.5
"""How long a look may take."""
_PAUSE_SECONDS = 5.0
"""A host that doesn't answer isn't looked at again for this long: a reader is on its way to another replica."""
_EXPIRED, _OTHER_NAME, _OTHER_IP = 10, 62, 64  # OpenSSL's codes


class _Closed(HoldfastError):
    """The connection was closed where an instance that accepts it would have sent something."""

    category = ErrorCategory.CLOSED


@dataclass
class Handshake:
    """The looks of one client at its instance."""

    address: str
    credentials: Credentials
    _not_before: float = field(default=0.0)

    def refusal(self, seconds: float) -> str | None:
        """Why the instance and this process don't accept each other; None if that isn't the reason."""
        if SYSTEM_CLOCK.monotonic() < self._not_before:
            return None
        try:
            with suppress(_Closed):
                return self._look(seconds)
            return self._look(seconds)  # an instance that was just ending is gone by now
        except _Closed:
            return (
                f"the instance at {self.address} closes the connection when this process shows its certificate. "
                "security.tls_cert_file must not have expired, and must be signed by the CA in security.tls_ca_file of "
                "that instance, whose log says what is wrong with it."
            )
        except ssl.SSLCertVerificationError as error:
            return self._untrusted(error)
        except ssl.SSLError:  # what came back isn't TLS
            return None if self.credentials.certificate is None else self._without_tls()
        except TimeoutError:
            self._not_before = SYSTEM_CLOCK.monotonic() + _PAUSE_SECONDS
            return None
        except (OSError, ValueError):
            return None  # nobody listens there, or Python knows that the host can't be one

    def _look(self, seconds: float) -> str | None:
        """One connection. Raises _Closed if the instance closes it without a word."""
        own = self.credentials.certificate
        try:
            parts = urlsplit(self.address)
            host, port = parts.hostname or "", parts.port or 0
        except ValueError:
            return None  # it isn't an address
        with create_connection((host, port), min(seconds, _SECONDS)) as plain:
            try:
                with _context(own).wrap_socket(plain, server_hostname=host) as secure:
                    if own is None:
                        return self._with_tls()
                    # In TLS 1.3 a server judges a client's certificate after the client is done. One that accepts it
                    # sends the first frame of HTTP/2.
                    if secure.recv(1):
                        return None
            except ssl.SSLEOFError:
                if own is None:
                    return None
            raise _Closed

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> str:
        if error.verify_code == _EXPIRED:
            remedy = "Renew it, and restart that instance."
        elif error.verify_code in (_OTHER_NAME, _OTHER_IP):
            remedy = "Give that instance one that names the host of its address as a subject alternative name."
        else:
            remedy = "It must be signed by the CA in security.tls_ca_file of this process."
        return (
            f"the certificate of the instance at {self.address} isn't accepted here: {error.verify_message}. {remedy}"
        )

    def _without_tls(self) -> str:
        return (
            f"the instance at {self.address} doesn't use TLS, and this process has a certificate. Give that instance "
            "the settings security.tls_cert_file, security.tls_key_file and security.tls_ca_file, or remove them here."
        )

    def _with_tls(self) -> str:
        return (
            f"the instance at {self.address} uses TLS, and this process has no certificate. Set "
            "security.tls_cert_file, security.tls_key_file and security.tls_ca_file."
        )


def _context(certificate: Certificate | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if certificate is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing is sent: the question is only whether TLS is spoken there
        return context
    context.load_verify_locations(cadata=certificate.ca.decode("ascii"))
    # Python loads a key from a file only; this one is in memory, so that no copy of the key is on a disk.
    memory = os.memfd_create("certificate")
    with open(memory, "wb") as file:
        file.write(certificate.cert + b"\n" + certificate.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    return context
