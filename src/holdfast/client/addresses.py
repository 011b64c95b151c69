"""Addresses of REST: as users write them, and which of those that a routing names a client may ask."""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.client.errors import BadAddress


def addresses_of(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The addresses, each with its scheme and without a slash at the end. Raises for one that nothing can be asked at.

    >>> addresses_of("localhost:8080"), addresses_of(["https://a.example/scores/", "[::1]:8080"])
    (('http://localhost:8080',), ('https://a.example/scores', 'http://[::1]:8080'))
    """
    addresses = tuple(_address(each) for each in ([given] if given is None or isinstance(given, str) else given))
    if not addresses:
        raise BadAddress("There are no addresses.")
    return addresses


def may_follow(seeds: Sequence[str], address: str) -> bool:
    """Whether a client that was given the seeds may send its token to an address that it has only heard of.

    A client that was given https:// never asks in the clear. And a loopback address is one of the machine that named
    it: here another program may listen there.

    >>> may_follow(["https://lb.example"], "http://b:1"), may_follow(["https://lb.example"], "https://b:1")
    (False, True)
    >>> may_follow(["http://lb.example"], "http://127.0.0.1:1"), may_follow(["http://localhost:1"], "http://[::1]:2")
    (False, True)
    """
    if address in seeds:
        return True
    try:
        if not _is_https(address) and any(map(_is_https, seeds)):
            return False
        return not is_loopback(address) or all(map(is_loopback, seeds))
    except ValueError:  # nothing can be asked there
        return False


def is_loopback(address: str) -> bool:
    """Whether an address is one of the machine that asks, without asking for the addresses of a name.

    >>> [is_loopback(f"http://{host}:1") for host in ("127.0.0.2", "[::ffff:127.0.0.1]", "0.0.0.0", "localhost", "a")]
    [True, True, True, True, False]
    """
    host = urlsplit(address).hostname or ""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback or ip.is_unspecified  # a connection to 0.0.0.0 is one to this machine


def _is_https(address: str) -> bool:
    return urlsplit(address).scheme == "https"


def _address(text: object) -> str:
    if text is None:
        raise BadAddress("None is not an address of REST: app.address is None before app.start() and after the end.")
    if not isinstance(text, str):
        raise BadAddress(f"{text!r:.200} is not an address of REST: its type is {type(text).__name__}.")
    address = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that isn't a number, an IPv6 address that isn't one
        fits = False
    if not fits or parts.query or parts.fragment or any(char.isspace() for char in text):
        raise BadAddress(f"{text!r:.200} is not an address of REST.")
    return address.rstrip("/")
