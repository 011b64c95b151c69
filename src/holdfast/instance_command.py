"""`holdfast instance`: the command by which an app starts its instances, and a server on any host.

Every start of an app waits for the first, so it runs without the imports of the other commands: 454 ms of processor
time instead of 522.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, SettingsError
from holdfast.lean import leave_pandas_out, share_one_allocator

if TYPE_CHECKING:
    from holdfast.settings.model import Settings

_EVERYWHERE = ("0.0.0.0", "[::]")


def main() -> None:
    """Runs the command. An error is one line on stderr, as with every other command."""
    try:
        host()
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}\n")
        sys.exit(1)


def host() -> None:
    """Hosts stores, as one line of JSON on stdin says, until SIGTERM or until stdin is closed."""
    if sys.stdin.isatty() or not (line := sys.stdin.buffer.readline().strip()):
        raise without_app()
    share_one_allocator()
    leave_pandas_out()
    from holdfast.serving import run

    run(line)


def without_app() -> SettingsError:
    return SettingsError(
        "holdfast instance needs the id of the app. Add --app ID. `app.run()` starts its instances itself; they have a "
        "configuration instead, as one line of JSON on standard input, and no options."
    )


def host_as_server(
    app: str, settings: Settings, log: str | None, id: str | None, tags: str, bind: str, advertise: str | None
) -> None:
    """Hosts stores as a member of the app's group, until SIGTERM."""
    share_one_allocator()
    leave_pandas_out()
    import msgspec

    from holdfast.group.members import check_id
    from holdfast.launching import config_of
    from holdfast.serving import serve

    if log is not None:
        settings = replace(settings, log=replace(settings.log, url=log))
    host, port = _address(bind, "--bind", "HOST:PORT, such as 0.0.0.0:7070 or [::]:7070")
    if port is None:
        raise SettingsError(f"--bind {bind!r} has no port. Write HOST:PORT, such as 0.0.0.0:7070.")
    if advertise is not None:
        _address(advertise, "--advertise", "HOST or HOST:PORT, such as pod-1:7070 or [2001:db8::7]:7070")
    serve(
        msgspec.structs.replace(
            config_of(app, check_id(id or socket.gethostname()), settings.absolute()),
            host=host,
            port=port,
            advertise=advertise or (socket.gethostname() if host in _EVERYWHERE else None),
            tags=tags_of(tags),
            embedded=False,
        )
    )


def _address(text: str, option: str, form: str) -> tuple[str, int | None]:
    from holdfast.instance.addresses import host_and_port

    try:
        return host_and_port(text)
    except ValueError:
        raise SettingsError(
            f"{option} {text!r} is not an address. Write {form}, with a port from 0 to 65535."
        ) from None


def tags_of(text: str) -> dict[str, str]:
    """The tags in a text.

    >>> tags_of("rack=a, zone=b")
    {'rack': 'a', 'zone': 'b'}
    """
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = part.partition("=")
        if not (name and separator and value):
            raise SettingsError(f"--tags {text!r}: {part!r} is not a tag. Write name=value, separated by commas.")
        found[name] = value
    return found
