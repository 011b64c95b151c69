"""An instance with REST, as one process: this is what `holdfast instance` runs.

The instance knows nothing of HTTP, so the two are put together here. Everything logged goes to standard error.
"""

import logging
import signal
import sys

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import ErrorCategory, Held, HoldfastError, StorageUnavailable
from holdfast.instance.config import InstanceConfig, decode
from holdfast.instance.group_member import GroupMember
from holdfast.instance.process import main, say_ready
from holdfast.instance.systemd import answer_watchdog, notify
from holdfast.log import identity, names
from holdfast.log.storage import open_storage
from holdfast.query.service import RestService

_LOG = logging.getLogger(__name__)


_LOOK_SECONDS = 0.5


class AnotherApp(HoldfastError):
    """The log belongs to another app."""

    category = ErrorCategory.INVALID


def run(line: bytes) -> None:
    """Runs the instance that a line of JSON describes, until it is told to end."""
    config = decode(line)
    _begin_logging(config)
    _main(config)


def serve(config: InstanceConfig) -> None:
    """Runs an instance as a server, until it is told to end. It waits for the log, if the app has never run."""
    _begin_logging(config)
    answer_watchdog()
    # The process has no state yet. As the first process of a container it would ignore the signal without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _wait_for_log(config)
    _main(config)


def _wait_for_log(config: InstanceConfig) -> None:
    storage = open_storage(config.log_url, config.log.options, fsync=config.log.fsync, retry=config.retry)
    said: str | None = None
    while True:
        try:
            found = identity.read(storage)
            if found is not None and found.app != config.app:
                raise AnotherApp(
                    f"{storage.place} is the log of the app {found.app!r}, and this instance is for {config.app!r}. "
                    "Start it with the log of its app."
                )
            if found is not None and storage.list_flat(names.APPS):
                return
            waits = f"waits for the app {config.app!r}: it has no log at {storage.place} yet"
        except StorageUnavailable as error:
            waits = f"waits for the storage: {error}"
        if waits != said:
            said = waits
            _LOG.info("instance %s %s", config.name, waits)
            notify("READY=1", f"STATUS={waits}")  # a unit that waits has started
        SYSTEM_CLOCK.sleep(_LOOK_SECONDS)


def _begin_logging(config: InstanceConfig) -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {config.name} %(name)s: %(message)s")


def _main(config: InstanceConfig) -> None:
    try:
        main(config, RestService if config.rest.enabled else None, GroupMember)
    except HoldfastError as error:
        say_ready(config, {"error": str(error), "held": isinstance(error, Held)})
        raise
