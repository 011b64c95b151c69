"""The tokens of REST's clients: who has them, what each may ask, and until when.

    # name       token                      scopes                     expires
    dashboard    5f0c9d1b7a33e8c46d20...    read:scores,read:levels    2027-01-31
    prometheus   c1e07b52d9f84a6b13ce...    admin

Tokens are found by a hash with a key that only this process has. So the time that a look-up takes says nothing about
the tokens, however many there are, and the process keeps none of them. A file is read again when it has changed. One
that can't be used changes nothing: the tokens read before stay valid, the log says what is wrong with which line, and
the file is tried again until it can be used. No text of a token is in an error or in the log.
"""

import datetime as dt
import hashlib
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Self

from holdfast.chance import SYSTEM_RANDOM
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.errors import SettingsError
from holdfast.query.grants import Grant
from holdfast.settings.rest import RestSettings
from holdfast.words import Millis

_LOG = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN = re.compile(r"[\x21-\x7e]{16,4096}")
_SCOPE = re.compile(r"admin|read:(\*|[A-Za-z0-9][A-Za-z0-9._-]*)")
_LOOK_SECONDS = 1.0
_NEXT_STEP = "Per line: a name, a token of 16 or more signs, scopes such as read:scores,admin, and optionally a date."


class Tokens:
    """The tokens of a text, each with its grant.

    >>> tokens = Tokens.parsed("ann 0123456789abcdef read:* 2030-01-31", "rest.tokens")
    >>> tokens.grant(b"0123456789abcdef").name, tokens.grant(b"0123456789abcdeg")
    ('ann', None)
    """

    def __init__(self) -> None:
        self._key = SYSTEM_RANDOM.randbytes(32)
        self._grants: dict[bytes, Grant] = {}

    @classmethod
    def parsed(cls, text: str, place: str) -> Self:
        """The tokens of a text. `place` says in errors where it is from."""
        found, names = cls(), set()
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            at = f"{place}, line {number}"
            token, grant = _parsed(words, at)
            digest = found._digest(token)
            if grant.name in names or digest in found._grants:
                raise SettingsError(f"{at}: this name or this token is in an earlier line. Give each client its own.")
            names.add(grant.name)
            found._grants[digest] = grant
        if not found._grants:
            raise SettingsError(f"{place} has no token. {_NEXT_STEP}")
        return found

    def grant(self, token: bytes) -> Grant | None:
        return self._grants.get(self._digest(token))

    def _digest(self, token: bytes) -> bytes:
        return hashlib.blake2b(token, key=self._key, digest_size=32).digest()


class TokenFile:
    """The tokens of a file as it is now. It is looked at once per second, when a request needs it."""

    def __init__(self, file: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._file = file
        self._clock = clock
        self._seen = self._signature()
        self._tokens = self._read()
        self._reported = ""
        self._next_look = clock.monotonic() + _LOOK_SECONDS

    def __call__(self) -> Tokens:
        if self._clock.monotonic() >= self._next_look:
            self._look()
        return self._tokens

    def _look(self) -> None:
        self._next_look = self._clock.monotonic() + _LOOK_SECONDS
        signature = self._signature()
        if signature == self._seen:
            return
        try:
            self._tokens = self._read()
        except SettingsError as error:
            if str(error) != self._reported:  # it is tried again each second, and reported once
                _LOG.error("the tokens stay as they were: %s", error)
            self._reported = str(error)
        else:
            self._seen, self._reported = signature, ""
            _LOG.info("read %s again: it has changed", self._place)

    @property
    def _place(self) -> str:
        return f"rest.tokens_file = {self._file}"

    def _signature(self) -> tuple[int, ...] | None:
        """What differs when the file has changed. Rights alone, or a text of the same size and time, change ctime."""
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

    def _read(self) -> Tokens:
        try:
            text = self._file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SettingsError(
                f"{self._place} can't be read: {why}. Set it to a file that this process may read."
            ) from None
        return Tokens.parsed(text, self._place)


def tokens_of(settings: RestSettings) -> Callable[[], Tokens] | None:
    """The tokens of the settings, to be asked for at each request; None where clients need none."""
    if settings.tokens_file is not None:
        return TokenFile(Path(settings.tokens_file))
    if settings.tokens is None:
        return None
    tokens = Tokens.parsed(settings.tokens, "rest.tokens")
    return lambda: tokens


def _parsed(words: list[str], at: str) -> tuple[bytes, Grant]:
    if not 3 <= len(words) <= 4:
        raise SettingsError(f"{at} has {len(words)} words. {_NEXT_STEP}")
    name, token, scopes, *expires = words
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{at}: the name can have up to 64 letters, digits, '.', '_' and '-'. {_NEXT_STEP}")
    if not _TOKEN.fullmatch(token):
        raise SettingsError(
            f"{at}: the token needs 16 to 4,096 ASCII letters, digits and signs. `openssl rand -hex 32` makes one."
        )
    found = scopes.split(",")
    if not all(map(_SCOPE.fullmatch, found)):
        raise SettingsError(
            f"{at}: the scopes must be admin, read:* or read:STORE, separated by commas without spaces."
        )
    return token.encode("ascii"), Grant(name, frozenset(found), _expiry(expires[0], at) if expires else None)


def _expiry(text: str, at: str) -> Millis:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{at}: the last word must be a date or a time, such as 2027-01-31 or 2027-01-31T12:00:00Z."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return Millis(round(moment.timestamp() * 1000))
