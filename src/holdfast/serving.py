"""An instance with REST, as one process: this is what `holdfast instance` runs.

The instance knows nothing of HTTP, so the two are put together here. Everything logged goes to standard error.
"""

import logging

from holdfast.errors import Held, HoldfastError
from holdfast.instance.config import decode
from holdfast.instance.group_member import GroupMember
from holdfast.instance.process import main, say_ready
from holdfast.query.service import RestService


def run(line: bytes) -> None:
    """Runs the instance that a line of JSON describes, until it is told to end."""
    config = decode(line)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s {config.name} %(name)s: %(message)s")
    try:
        main(config, RestService if config.rest.enabled else None, GroupMember)
    except HoldfastError as error:
        say_ready(config, {"error": str(error), "held": isinstance(error, Held)})
        raise
