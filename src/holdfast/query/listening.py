"""A socket that listens, or an error that says which setting to change."""

import errno
import socket
from collections.abc import Iterator

from holdfast.errors import ErrorCategory, Held, HoldfastError
from holdfast.instance.credentials import check_protected

BACKLOG = 1024
_Resolved = tuple[
    socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
]
LIVE = "/health/live"
"""The path at which everyone may ask what listens there."""


class AddressUnusable(HoldfastError):
    """The configured address can't be listened on."""

    category = ErrorCategory.INVALID


class AddressTaken(Held):
    """Another program listens on the configured port."""


def listen(
    host: str, port: int, setting: str = "rest.port", *, authenticates: bool = False, insecure: bool = False
) -> socket.socket:
    """Listens on a port; 0 uses any free one. `setting` is what a user would change."""
    family, kind, protocol, _, address = resolved(host, port, setting, authenticates=authenticates, insecure=insecure)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart needn't wait for old connections
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        kind_of_error = AddressTaken if error.errno == errno.EADDRINUSE else AddressUnusable
        raise kind_of_error(
            f"REST can't listen on {host}, port {port}: {error.strerror}. Stop the program that uses it, or set "
            f"{setting} to another (0 takes any free one) or rest.host to an address of this machine."
        ) from error
    return listener


def accepted(listener: socket.socket, most: int = BACKLOG) -> Iterator[tuple[socket.socket, str]]:
    """Connections that wait to be accepted, and their addresses. The listener doesn't block, and neither do they."""
    for _ in range(most):
        try:
            connection, (address, *_) = listener.accept()
        except ConnectionAbortedError:  # by its client, which has left again
            continue
        except BlockingIOError:
            return
        connection.setblocking(False)
        yield connection, address


def resolved(
    host: str, port: int, setting: str = "rest.port", *, authenticates: bool = False, insecure: bool = False
) -> _Resolved:
    """An address that may be listened on, as `socket.getaddrinfo` has it.

    Other machines may connect only if they are asked who they are (`authenticates`), or if it is `insecure` on purpose.
    """
    if not 0 <= port <= 65_535:
        raise AddressUnusable(f"REST can't listen on port {port}. Set {setting} to one from 1 to 65535, or 0 for any.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise AddressUnusable(
            f"REST can't listen on {host!r}, port {port}: {error}. Set rest.host to an address of this machine."
        ) from error
    if not authenticates and not insecure:
        remedy = (
            "Set rest.tokens_file, or rest.tls_ca_file for client certificates, or rest.host to 127.0.0.1; or, if "
            "everyone there may read every store, rest.insecure to true."
        )
        check_protected("REST", str(found[4][0]), remedy)
    return found
