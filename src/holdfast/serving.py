"""An instance with REST beside it, as one process: what `holdfast instance` runs.

The instance knows nothing of HTTP and REST nothing of health; they are put together here. Everything logged goes to
standard error.
"""

import logging

import msgspec

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import HoldfastError, SettingsError
from holdfast.instance.process import Instance, InstanceConfig, main, say_ready
from holdfast.observe.endpoints import endpoints
from holdfast.observe.health import LastErrors
from holdfast.query.beside import RestBeside, not_ready, readable_version, reader_of


def run(line: bytes) -> None:
    """Runs the instance that a line of JSON describes, until it is told to end."""
    try:
        config = msgspec.json.decode(line, type=InstanceConfig)
    except msgspec.DecodeError as error:
        # Not the line itself: it may hold credentials of the log.
        raise SettingsError(
            f"The configuration on standard input is no InstanceConfig: {error}. Start the instance with the version "
            "of Holdfast that the app has."
        ) from None
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {config.name} %(name)s: %(message)s")
    try:
        main(config, rest if config.rest_enabled else None)
    except HoldfastError as error:
        say_ready(config, {"error": str(error)})
        raise


def rest(instance: Instance) -> RestBeside:
    """REST over a started instance, with its health and its metrics."""
    errors = LastErrors(SYSTEM_CLOCK)
    reader = reader_of(instance, errors.note)
    more = endpoints(
        stores=reader.names(),
        read=reader.probe,
        errors=errors,
        not_ready=lambda: not_ready(instance),
        version=lambda: readable_version(instance),
    )
    return RestBeside(instance, reader, more)
