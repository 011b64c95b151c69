"""The addresses of an instance: those that it listens on, and those by which others reach it, which may differ."""

import contextlib
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.group.members import is_host
from holdfast.instance.config import InstanceConfig


class CannotListen(HoldfastError):
    category = ErrorCategory.INVALID


class NotAnAddress(HoldfastError, ValueError):
    category = ErrorCategory.INVALID


def host_and_port(text: str) -> tuple[str, int | None]:
    """The host and the port of HOST or HOST:PORT. Raises ValueError for any other text.

    >>> host_and_port("pod-1:7070"), host_and_port("10.0.0.7"), host_and_port("[2001:db8::7]:7070")
    (('pod-1', 7070), ('10.0.0.7', None), ('[2001:db8::7]', 7070))
    """
    parts = urlsplit(f"//{text}")
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if not is_host(host) or parts.netloc != text or text.endswith(":"):
        raise NotAnAddress(f"{text!r} is not an address. Write HOST or HOST:PORT.")
    return host, parts.port


@contextlib.contextmanager
def listening(config: InstanceConfig) -> Iterator[None]:
    """An error in the block is one of listening on the address of the instance."""
    try:
        yield
    except pa.ArrowException as error:
        check_port(config)  # Arrow says only that the server didn't start
        raise _cannot_listen(config, error) from error
    except OSError as error:
        raise _cannot_listen(config, error.strerror or error) from error


def _cannot_listen(config: InstanceConfig, cause: object) -> CannotListen:
    return CannotListen(
        f"instance {config.name!r} can't listen on {config.host}:{config.port}: {cause}. Stop the program that listens "
        "there, or choose another port."
    )


def check_port(config: InstanceConfig) -> None:
    """Raises if another program listens on the port of the instance, or if the host isn't one of this machine."""
    with listening(config):
        places = socket.getaddrinfo(
            config.host.strip("[]"), config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = places[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            listener.bind(address)
            listener.listen()


def advertised(config: InstanceConfig, port: int) -> tuple[str, int]:
    """The host and port by which others reach what listens on a port here.

    >>> config = InstanceConfig(app="game", name="a", log_url="log", state_dir="state", advertise="10.0.0.7")
    >>> advertised(config, 7070)
    ('10.0.0.7', 7070)
    """
    if config.advertise is None:
        return config.host, port
    host, given = host_and_port(config.advertise)
    return host, port if given is None else given


def rest_address(config: InstanceConfig, url: str) -> str:
    """The address by which others reach REST here: that of the instance, if REST listens on all of the host's.

    >>> config = InstanceConfig(app="game", name="a", log_url="log", state_dir="state", advertise="10.0.0.7:7070")
    >>> rest_address(config, "http://0.0.0.0:8080"), rest_address(config, "http://10.1.1.1:8080")
    ('http://10.0.0.7:8080', 'http://10.1.1.1:8080')
    >>> rest_address(InstanceConfig(app="game", name="a", log_url="log", state_dir="state", advertise="[::7]:7070"),
    ...     "http://[::]:8080")
    'http://[::7]:8080'
    """
    parts = urlsplit(url)
    if config.advertise is None or parts.hostname not in ("0.0.0.0", "::"):
        return url
    return f"{parts.scheme}://{host_and_port(config.advertise)[0]}:{parts.port}"
