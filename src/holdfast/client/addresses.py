"""Addresses of REST as users write them."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.client.errors import BadAddress


def addresses_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses, each with its scheme and without a slash at the end. Raises for one that nothing can be asked at.

    >>> addresses_of("localhost:8080"), addresses_of(["https://a.example/scores/", "[::1]:8080"])
    (('http://localhost:8080',), ('https://a.example/scores', 'http://[::1]:8080'))
    """
    addresses = tuple(_address(each) for each in ([given] if isinstance(given, str) else given))
    if not addresses:
        raise BadAddress("There are no addresses.")
    return addresses


def _address(text: str) -> str:
    address = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that isn't a number, an IPv6 address that isn't one
        fits = False
    if not fits or parts.query or parts.fragment or any(char.isspace() for char in text):
        raise BadAddress(f"{text!r:.200} is not an address of REST.")
    return address.rstrip("/")
