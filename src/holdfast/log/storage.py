"""Opening a storage by its address.

./folder  /folder  file:///folder    a local folder, with a durable writer of our own
s3://  gs://  az://                  object storage
memory://name                        this process's memory, shared per name
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import SettingsError
from holdfast.log.local import LocalStorage
from holdfast.log.objects import Storage
from holdfast.log.remote import open_memory, open_remote
from holdfast.retry import DEFAULT_RETRY
from holdfast.settings.sections import RetrySettings

_REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_NO_OPTIONS: Mapping[str, str] = {}


def open_storage(
    url: str,
    options: Mapping[str, str] = _NO_OPTIONS,
    *,
    fsync: bool = True,
    retry: RetrySettings = DEFAULT_RETRY,
    within: timedelta | None = None,
) -> Storage:
    """Opens a storage by its address. This writes nothing and creates no folder.

    With `within` no call to object storage takes longer, its retries included. A disk that hangs can't be left.

    >>> storage = open_storage("memory://docs-example")
    >>> storage.create("a/b", b"data"), storage.create("a/b", b"other"), storage.get("a/b")
    (<Put.CREATED: 'created'>, <Put.EXISTS: 'exists'>, b'data')
    """
    parts = urlsplit(url)
    if parts.scheme == "":
        return LocalStorage(Path(url).expanduser(), fsync=fsync, retry=retry, retry_for=within)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise SettingsError(f"log.url {url!r} names a host. Write file:///folder with three slashes.")
        return LocalStorage(Path(unquote(parts.path)), fsync=fsync, retry=retry, retry_for=within)
    if parts.scheme == "memory":
        return open_memory(f"{parts.netloc}{parts.path}", retry=retry)
    if parts.scheme in _REMOTE:
        return open_remote(url, options, retry=retry, within=within)
    raise SettingsError(
        f"log.url starts with {parts.scheme}://, which Holdfast doesn't support. Use a path, file://, s3://, gs://, "
        "az:// or memory://."
    )
