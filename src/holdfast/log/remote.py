"""Object storage through obstore: S3, GCS, Azure, and a storage in memory for tests.

obstore's own retries are switched off; `retry.*` settings apply. Its errors are translated into the log's four
failures. Its messages may contain addresses with credentials, so errors have only the first line, with all secrets
redacted, and the original isn't chained.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import MemoryStore, from_url

from holdfast.errors import SettingsError, StorageUnavailable
from holdfast.log.objects import Names, ObjectMissing, Put, StorageFull, StorageRefused
from holdfast.log.store_options import options_for
from holdfast.retry import DEFAULT_RETRY, WarnedRarely, retrying
from holdfast.settings.sections import RetrySettings
from holdfast.settings.units import HIDDEN, redact

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

_DURATION = re.compile(r" in [\d.]+(ns|µs|us|ms|s)\b")
_STATUS = re.compile(r"status code: (\d{3})")
_SERVERS_WORDS = re.compile(r"<Code>([^<]+)</Code>\s*<Message>([^<]+)</Message>")
_MACHINES_ROLE = re.compile(r"//169\.254\.|/latest/api/token|/latest/meta-data|//metadata\.google\.|/metadata/identity")
"""In an error: the addresses that are asked for credentials when a process has none."""
_MISSING = (NotFoundError, FileNotFoundError)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
"""In an error: it isn't an object that is missing."""
_REFUSED = (PermissionDeniedError, UnauthenticatedError, PermissionError)
_RETRYABLE = {408, 409, 425, 429}

_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()


class RemoteStorage:
    """Objects in a bucket, or in memory of this process."""

    def __init__(
        self,
        store: "ObjectStore",
        place: str,
        *,
        secrets: Iterable[str] = (),
        retry: RetrySettings = DEFAULT_RETRY,
        retry_for: timedelta | None = None,
    ) -> None:
        """With `retry_for`, calls are retried for so long and not for so many attempts."""
        self._store = store
        self._place = place
        self._secrets = tuple(sorted((secret for secret in secrets if secret), key=len, reverse=True))
        self._retry = retry
        self._retry_for = retry_for
        self._warned = WarnedRarely()

    @property
    def place(self) -> str:
        return self._place

    def __repr__(self) -> str:
        return f"RemoteStorage({self.place!r})"

    def create(self, name: str, data: bytes) -> Put:
        return self._attempt(name, lambda: self._create(name, data))

    def create_file(self, name: str, path: Path) -> None:
        # Not create-if-absent, which isn't possible for multipart uploads. The name is the content's hash, so a second
        # put changes nothing.
        self._attempt(name, lambda: obstore.put(self._store, name, path), writes=True)

    def replace(self, name: str, data: bytes) -> None:
        self._attempt(name, lambda: obstore.put(self._store, name, data), writes=True)

    def get(self, name: str) -> bytes:
        return self._attempt(name, lambda: obstore.get(self._store, name).bytes().to_bytes())

    def get_range(self, name: str, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        return self._attempt(name, lambda: self._get_range(name, start, length))

    def exists(self, name: str) -> bool:
        return self._attempt(name, lambda: self._exists(name))

    def list(self, prefix: str, after: str | None = None, before: str | None = None) -> Names:
        def names() -> Names:
            found: Names = []
            for page in obstore.list(self._store, prefix.rstrip("/") or None, offset=after):
                names = [meta["path"] for meta in page]
                found += [name for name in names if before is None or name < before]
                if before is not None and all(name >= before for name in names):
                    break  # pages are in the order of names
            return sorted(found)

        # Some servers ignore `offset`.
        return [name for name in self._attempt(prefix, names) if after is None or name > after]

    def list_flat(self, prefix: str) -> Names:
        def names() -> Names:
            found = obstore.list_with_delimiter(self._store, prefix.rstrip("/") or None)
            return sorted(meta["path"] for meta in found["objects"])

        return self._attempt(prefix, names)

    def delete(self, names: Iterable[str]) -> None:
        deleted = list(names)
        for first in range(0, len(deleted), 1000):
            chunk = deleted[first : first + 1000]
            self._attempt(chunk[0], lambda chunk=chunk: self._delete(chunk))  # type: ignore[misc]

    def _create(self, name: str, data: bytes) -> Put:
        try:
            obstore.put(self._store, name, data, mode="create")
        except (AlreadyExistsError, FileExistsError, PreconditionError):
            # S3 answers 409 while another put of the name is under way, and obstore takes that for "exists" too.
            if not self._exists(name):
                raise StorageUnavailable(
                    f"{self.place} refused {name} because another put of the same name was under way, and it isn't "
                    "stored. Try again."
                ) from None
            return Put.EXISTS
        except _MISSING as error:
            raise self._refused(name, error) from None
        return Put.CREATED

    def _get_range(self, name: str, start: int, length: int) -> bytes:
        try:
            return obstore.get_range(self._store, name, start=start, length=length).to_bytes()
        except GenericError:
            # Servers answer a range that starts after the end with different errors; the size identifies it.
            if obstore.head(self._store, name)["size"] <= start:
                return b""
            raise

    def _exists(self, name: str) -> bool:
        try:
            obstore.head(self._store, name)
        except _MISSING:
            return False
        return True

    def _delete(self, names: Names) -> None:
        try:
            obstore.delete(self._store, names)
        except _MISSING:
            # Some servers stop at a missing name: delete the others one by one.
            for name in names:
                if self._exists(name):
                    obstore.delete(self._store, name)

    def _attempt(self, name: str, call: Callable[[], T], *, writes: bool = False) -> T:
        return retrying(
            lambda: self._translated(name, call, writes), self._retry, deadline=self._retry_for, warned=self._warned
        )

    def _translated(self, name: str, call: Callable[[], T], writes: bool) -> T:
        try:
            return call()
        except _MISSING as error:
            if writes or _NO_BUCKET.search(str(error)):
                raise self._refused(name, error) from None
            raise ObjectMissing(self.place, name) from None
        except _REFUSED as error:
            raise self._refused(name, error) from None
        except (BaseError, OSError) as error:
            status = _STATUS.search(str(error))
            code = int(status[1]) if status else None
            if code == 507:
                raise StorageFull(
                    f"No space for {name} in {self.place}: {self._text(error)}. Free space, then start again."
                ) from None
            if code is not None and 400 <= code < 500 and code not in _RETRYABLE:
                raise self._refused(name, error) from None
            next_step = _no_credentials(error) or "Check the address and the network."
            raise StorageUnavailable(
                f"{self.place} didn't answer for {name}: {self._text(error)}. {next_step}"
            ) from None

    def _refused(self, name: str, error: Exception) -> StorageRefused:
        next_step = _no_credentials(error) or (
            "Check that the bucket exists and that the credentials allow to read, write, list and delete."
        )
        return StorageRefused(f"{self.place} refused {name}: {self._text(error)}. {next_step}")

    def _text(self, error: Exception) -> str:
        return redacted(_first_line(str(error)) or type(error).__name__, self._secrets)


def _first_line(text: str) -> str:
    """What happened, with the server's code and message in place of its XML.

    Without how long it took, so that the same failure has the same text each time: it is reported once.

    >>> _first_line("PUT failed: 404: <?xml?>\\n<Error><Code>NoSuchBucket</Code><Message>It is not there.</Message>")
    'PUT failed: 404: NoSuchBucket: It is not there'
    >>> _first_line("Error performing GET http://a/b in 881.4µs - 503 Service Unavailable")
    'Error performing GET http://a/b - 503 Service Unavailable'
    """
    text = _DURATION.sub("", text)
    line = (text.strip().splitlines() or [""])[0]
    words = _SERVERS_WORDS.search(text)
    if words is None:
        return line[:300]
    return f"{re.split('<[?]xml|<Error', line)[0][:300].rstrip(' :')}: {words[1]}: {words[2][:200].rstrip('.')}"


def _no_credentials(error: Exception) -> str:
    """The next step if a process has no credentials, so that the machine's own role was asked for."""
    if not _MACHINES_ROLE.search(str(error)):
        return ""
    return (
        "This process has no credentials for it in log.options or its environment, so the role of its machine was "
        "asked for. Set them where the app and Spark's executors run, before the Spark session is created."
    )


def open_remote(
    url: str, options: Mapping[str, str], *, retry: RetrySettings, within: timedelta | None = None
) -> RemoteStorage:
    """Opens a bucket by its address. `store_options` has the names of the options.

    With `within` no call takes longer, its retries included: half of it is for the last request.
    """
    chosen = options_for(urlsplit(url).scheme, options, os.environ)
    half = None if within is None else within / 2
    if half is not None:
        chosen.client.update(dict.fromkeys(("timeout", "connect_timeout"), half))
    secrets = [value for key, value in options.items() if value and redact(key, value) != value]
    place = redact("url", url)
    try:
        store = from_url(  # type: ignore[call-overload]  # every scheme has its own options
            url,
            config=chosen.store,
            client_options=chosen.client or None,  # an empty dict would hide AWS_ALLOW_HTTP of the environment
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=60)},
        )
    except (BaseError, ValueError) as error:
        text = redacted(str(error).splitlines()[0], secrets)
        named = [f"{key}={redact(key, value)!r}" for key, value in options.items() if f'"{value}"' in str(error)]
        what = f"option {', '.join(named)}" if named else "or its options"
        raise SettingsError(f"log.url {place}: {what} can't be used: {text}. Fix it.") from None
    return RemoteStorage(store, place, secrets=secrets, retry=retry, retry_for=half)


def open_memory(name: str, *, retry: RetrySettings) -> RemoteStorage:
    """Opens a storage in this process, one per name."""
    with _memories_lock:
        store = _memories.setdefault(name, MemoryStore())
    return RemoteStorage(store, f"memory://{name}", retry=retry)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """A text without secrets, and without credentials and signatures in addresses.

    >>> redacted("GET http://host/log?sig=abc with hunter2", ["hunter2"])
    'GET http://host/log?****** with ******'
    """
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return redact("text", text)
