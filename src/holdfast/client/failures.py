"""Errors that a client finds by itself: nobody has answered, or what it was given or has received is of no use."""

from collections.abc import Mapping

from holdfast.errors import ErrorCategory, HoldfastError


class ClientError(HoldfastError):
    """The base class of what clients raise."""

    category = ErrorCategory.BUG


class NoAnswer(ClientError):
    """No instance has answered before the deadline, or the call had no turn to ask one."""

    category = ErrorCategory.RETRY

    def __init__(self, seconds: float, tried: Mapping[str, str], *, crowded: bool = False) -> None:
        each = "; ".join(f"{address}: {reason}" for address, reason in tried.items()) or "none was tried"
        super().__init__(
            f"The {seconds:g} s of the call have passed while it waited for its turn in this client ({each}). Make "
            "fewer calls at once, read many keys with get_many, or give it more time with timeout=."
            if crowded
            else f"No instance has answered in {seconds:g} s ({each}). Check that the app runs and that these are "
            "addresses of its REST; `holdfast group` prints its instances. Or give it more time with timeout=."
        )
        self.tried = dict(tried)
        """Per address, what has happened there."""


class NotTrusted(ClientError):
    """No certificate of an instance was accepted. Asking again would not help."""

    category = ErrorCategory.INVALID

    def __init__(self, tried: Mapping[str, str]) -> None:
        each = "; ".join(f"{address}: {reason}" for address, reason in tried.items())
        super().__init__(
            f"No certificate of an instance was accepted ({each}). Name the CA of the instances: "
            'tls=ssl.create_default_context(cafile="ca.pem"), or --ca-file in a terminal; and give a host that the '
            "certificate is for."
        )
        self.tried = dict(tried)


class ClientClosed(ClientError):
    """The client was closed before the call, or during it."""

    category = ErrorCategory.CLOSED

    def __init__(self) -> None:
        super().__init__("The client is closed. Make the call within its `with` block, or before close().")


class BadAddress(ClientError):
    """An address that a client was given can't be one."""

    category = ErrorCategory.INVALID

    def __init__(self, fact: str) -> None:
        super().__init__(f"{fact} Give those of instances of the app, such as http://localhost:8080.")


class BadToken(ClientError):
    """A text that a client was given can't be a token. The text is not in the error."""

    category = ErrorCategory.INVALID


class BadAnswer(ClientError):
    """An answer that no instance of this release gives."""

    category = ErrorCategory.INVALID

    def __init__(self, address: str, status: int, what: str) -> None:
        super().__init__(
            f"{address} has answered with status {status} and {what}, as no instance of this release does. Check the "
            "address, and that client and instances are of the same release."
        )


class WrongType(ClientError):
    """A value doesn't fit the type that the store was asked for with."""

    category = ErrorCategory.INVALID

    def __init__(self, store: str, key: object, type_: object, reason: str) -> None:
        name = type_.__qualname__ if isinstance(type_, type) else str(type_)
        super().__init__(
            f"The value of key {key!r:.200} in store {store!r} doesn't fit the type {name}: {reason}. Give "
            "client.store() a type that fits all values of the store, with the fields that fields= selects, or none: "
            "then values are as JSON has them."
        )
        self.store = store
        self.key = key
