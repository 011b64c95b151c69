"""Calls of an app's REST from outside: where its instances listen, and requests that go to the next one if one is down.

Used by the Spark data source; other callers have `hf.Client`. Addresses come from the heartbeats in the app's log, or
from the user, and are asked in this order each time: a version is held by the replicas that the asked instance reads,
so it finds the version at once where another one has to ask its peers.

An answer may take a minute. A process that hangs accepts connections and says nothing, and nobody should wait a minute
for it: each instance is first asked whether it lives, which takes it a few milliseconds. One that doesn't say so within
seconds is asked last for a while, by all calls of this process.
"""

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import IO

import msgspec

from holdfast.client.addresses import is_loopback
from holdfast.client.effects import RETRIED
from holdfast.client.errors import Overloaded, TimedOut, TooManyHolds
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import ErrorCategory, HoldfastError
from holdfast.group.members import Members, MemberState
from holdfast.log.log import Log
from holdfast.query.listening import LIVE
from holdfast.retry import WarnedRarely, retrying
from holdfast.settings.sections import RetrySettings

_SECONDS = 60.0
_LIVE_SECONDS = 3.0
"""How long an instance may take to say that it lives. Its answers to other requests don't hold this one up."""
_SILENT_SECONDS = 60.0
"""For so long an instance that didn't say so is asked last."""
_RETRY = RetrySettings(first="1s", longest="1s")
"""At most the Retry-After of instances."""
_TOO_MANY = 429
_BUSY = frozenset({Overloaded.error, TimedOut.error, TooManyHolds.error})
"""Problems with the status 503 that end when other requests have ended. The others of it are about the instance and its
tasks, such as `restoring`: how long they last is not known, and Spark runs a task again that has failed."""

_warned = WarnedRarely()


class Silent:
    """Instances that accepted a connection, or didn't refuse one, and said nothing; until when they are asked last."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, address: str, now: float) -> None:
        self._until[address] = now + _SILENT_SECONDS

    def last(self, addresses: Sequence[str], now: float) -> list[str]:
        """The addresses in their order, those that were silent after the others.

        >>> silent = Silent()
        >>> silent.add("a", 0.0)
        >>> silent.last("ab", 59.0), silent.last("ab", 60.0)
        (['b', 'a'], ['a', 'b'])
        """
        return sorted(addresses, key=lambda address: self._until.get(address, now) > now)


_silent = Silent()


class NoInstances(HoldfastError):
    """The log names no instance with REST."""

    category = ErrorCategory.INVALID


class NoInstanceAnswers(HoldfastError):
    """No instance of the app answers over REST."""

    category = ErrorCategory.RETRY


class InstancesBusy(NoInstanceAnswers):
    """No instance answers now, and one that could is busy."""


class RestRefused(HoldfastError):
    """An instance answered with an error."""

    category = ErrorCategory.INVALID

    def __init__(self, message: str, what_to_do: str, error: str = "") -> None:
        super().__init__(f"{message} {what_to_do}".strip())
        self.message = message
        self.error = error
        """The name of the error, as REST has it."""


class _Refusal(msgspec.Struct):
    error: str = ""
    message: str = ""
    what_to_do: str = ""


def rest_addresses(log: Log) -> list[str]:
    """The addresses of REST that members have written to the app's log, without those that have left."""
    members = Members(log.storage, log.id).read().values()
    found = [(each.rest, each.host) for each in members if each.rest and each.state is not MemberState.LEFT]
    if not found:
        raise NoInstances(
            f"No instance in {log.storage.place} answers over REST. Start the app or `holdfast instance`, with "
            "rest.enabled = true; or give an address."
        )
    return reachable(found)


def reachable(addresses: Sequence[tuple[str, str]]) -> list[str]:
    """Those of the addresses that can be asked from this machine. Each has the host of the process that named it.

    A loopback address is one of the machine that named it. Anyone may listen there on another one, and would get the
    token.
    """
    here = socket.gethostname()
    found = [address for address, host in addresses if host == here or not is_loopback(address)]
    if not found:
        raise NoInstances(
            f"All addresses of REST are loopback addresses of {', '.join(sorted({host for _, host in addresses}))}, "
            f"which {here} can't reach. Set rest.host of the instances to an address that other machines reach; or "
            "give an address."
        )
    return found


@contextmanager
def answered(
    addresses: Sequence[str],
    path: str,
    headers: Mapping[str, str] = {},
    *,
    method: str | None = None,
    tls: ssl.SSLContext | None = None,
    clock: Clock = SYSTEM_CLOCK,
    silent: Silent = _silent,
) -> Iterator[IO[bytes]]:
    """The answer of the first instance that gives one. If one can't be reached or isn't ready, the next is asked.

    Many tasks of a Spark job ask at the same time, often more than one caller may (429), or than an instance answers at
    a time. So where an instance is busy, all are asked again after a pause, for a minute.
    """
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls), _NoRedirects())

    def ask() -> IO[bytes]:
        busy, failed = False, list[str]()
        for address in silent.last(addresses, clock.monotonic()):
            if (problem := _why_not_live(opener, address)) is not None:
                failed.append(f"{address}: {problem}")
                if isinstance(problem, TimeoutError):
                    silent.add(address, clock.monotonic())
                continue
            request = urllib.request.Request(address.rstrip("/") + path, None, dict(headers), method=method)
            try:
                answer: IO[bytes] = opener.open(request, timeout=_SECONDS)
            except urllib.error.HTTPError as error:
                said = _refusal(error)
                if error.code not in RETRIED:
                    raise RestRefused(said.message, said.what_to_do, said.error) from None
                busy |= error.code == _TOO_MANY or said.error in _BUSY
                failed.append(f"{address}: {said.message}")
            except (OSError, http.client.HTTPException) as error:
                failed.append(f"{address}: {error}")
            else:
                return answer
        kind = InstancesBusy if busy else NoInstanceAnswers
        facts = "; ".join(failed).removesuffix(".")
        raise kind(f"No instance answered. {facts}. Ask again in a moment, or check the addresses.")

    def may_pass(error: HoldfastError) -> bool:
        return isinstance(error, InstancesBusy)

    limit = timedelta(seconds=_SECONDS)
    with closing(retrying(ask, _RETRY, deadline=limit, clock=clock, may_pass=may_pass, warned=_warned)) as answer:
        yield answer


def _why_not_live(opener: urllib.request.OpenerDirector, address: str) -> Exception | None:
    """None if an instance answers at this address. It needs no token for this, so none is sent."""
    try:
        opener.open(address.rstrip("/") + LIVE, timeout=_LIVE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()  # whatever it says: the request itself says more
    except urllib.error.URLError as error:
        return error.reason if isinstance(error.reason, TimeoutError) else error
    except (OSError, http.client.HTTPException) as error:
        return error
    return None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """No instance redirects, and the token would go to wherever an answer says."""

    def redirect_request(self, *_: object) -> None:
        return None


def _refusal(error: urllib.error.HTTPError) -> _Refusal:
    try:
        return msgspec.json.decode(error.read(), type=_Refusal)
    except (msgspec.MsgspecError, OSError, http.client.HTTPException):
        return _Refusal(message=f"The answer was {error.code} {error.reason}.")
