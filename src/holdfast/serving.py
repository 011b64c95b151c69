"""An instance with REST, as one process: this is what `holdfast instance` runs.

The instance knows nothing of HTTP, so the two are put together here. Everything logged goes to standard error.
"""

import logging
import sys
import traceback

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import Held, HoldfastError, StorageUnavailable
from holdfast.instance.addresses import check_port
from holdfast.instance.config import InstanceConfig, decode
from holdfast.instance.credentials import Credentials
from holdfast.instance.group_member import GroupMember
from holdfast.instance.process import call_on_signals, end, main, say_ready
from holdfast.instance.systemd import answer_watchdog, notify
from holdfast.log import identity, names
from holdfast.log.storage import open_storage
from holdfast.query.listening import listen, resolved
from holdfast.query.service import RestService

_LOG = logging.getLogger(__name__)


_LOOK_SECONDS = 0.5


def run(line: bytes) -> None:
    """Runs the instance that a line of JSON describes, until it is told to end."""
    config = decode(line)
    _begin_logging(config)
    _main(config)


def serve(config: InstanceConfig) -> None:
    """Runs an instance as a server, until it is told to end. It waits for the log, if the app has never run."""
    _begin_logging(config)
    _check_addresses(config)
    if config.group.assignor is not None:
        from holdfast.group.own_assignor import load_assign

        load_assign(config.group.assignor, _LOG.warning)  # which it may need first when it leaves
    answer_watchdog()
    call_on_signals(_end)  # as the first process of a container it would ignore the signals without a handler
    _wait_for_log(config)
    _main(config)


def _end() -> None:
    """Ends the process at once: it has no state yet. The main thread may be inside a call that doesn't return."""
    _LOG.info("told to end, while it hosts nothing yet")
    end(0)


def _check_addresses(config: InstanceConfig) -> None:
    """Refuses what no log can make right, so that nobody finds out when the app starts."""
    Credentials.of(config.security).check_host(f"instance {config.name!r}", config.host)
    rest = config.rest
    if rest.enabled:
        resolved(rest.host, rest.port, authenticates=rest.authenticates, insecure=rest.insecure)


def _check_ports(config: InstanceConfig) -> None:
    """Refuses ports that another program has.

    They are free again afterwards: a client that connected while the instance waits would get no answer. An instance
    that needn't wait listens at once, and says who has its id before it says who has its port.
    """
    check_port(config)
    rest = config.rest
    if rest.enabled:
        listen(rest.host, rest.port, authenticates=rest.authenticates, insecure=rest.insecure).close()


def _wait_for_log(config: InstanceConfig) -> None:
    storage = open_storage(config.log_url, config.log.options, fsync=config.log.fsync, retry=config.retry)
    said: str | None = None
    while True:
        try:
            found = identity.read(storage)
            if found is not None and found.app != config.app:
                raise identity.OtherApp(
                    f"{storage.place} is the log of the app {found.app!r}, and this instance is for {config.app!r}. "
                    "Start it with the log of its app."
                )
            if found is not None and storage.list_flat(names.APPS):
                return
            waits = f"waits for the app {config.app!r}: it has no log at {storage.place} yet"
        except StorageUnavailable as error:
            waits = f"waits for the storage: {error}"
        if said is None:
            _check_ports(config)
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
        if config.embedded:  # a server has nobody to tell but its user, who finds it on standard error
            say_ready(config, {"error": str(error), "held": isinstance(error, Held)})
        sys.stderr.write(f"holdfast: {error}\n")
        end(1)
    except Exception:  # noqa: BLE001  a bug, which is shown with its trace
        traceback.print_exc()
        end(1)
