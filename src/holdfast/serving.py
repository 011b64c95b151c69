"""An instance with REST, as one process: this is what `holdfast instance` runs.

The instance knows nothing of HTTP and REST nothing of health; they are put together here. Everything logged goes to
standard error.
"""

import logging

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError
from holdfast.instance.config import decode
from holdfast.instance.instance import Instance
from holdfast.instance.process import main, say_ready
from holdfast.observe.endpoints import endpoints
from holdfast.observe.health import LastErrors
from holdfast.query.service import RestService, not_ready, readable_version, store_reader


def run(line: bytes) -> None:
    """Runs the instance that a line of JSON describes, until it is told to end."""
    config = decode(line)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {config.name} %(name)s: %(message)s")
    try:
        main(config, rest if config.rest.enabled else None)
    except HoldfastError as error:
        say_ready(config, {"error": str(error)})
        raise


def rest(instance: Instance) -> RestService:
    """REST over a started instance, with its health and its metrics."""
    errors = LastErrors(SYSTEM_CLOCK)
    reader = store_reader(instance, errors.record)
    more = endpoints(
        stores=reader.names(),
        read=reader.probe,
        errors=errors,
        not_ready=lambda: not_ready(instance),
        version=lambda: readable_version(instance),
    )
    return RestService(instance, reader, more)
