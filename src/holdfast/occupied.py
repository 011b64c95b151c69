"""The ports and folders that an app needs on this machine, checked before its driver takes over.

What the app's own driver before holds is free soon, because the takeover ends that driver. What any other program holds
is an error at once, and the driver that runs goes on.
"""

import http.client
import json
import ssl
from collections.abc import Collection, Mapping
from datetime import timedelta

from holdfast.instance import state_dir
from holdfast.query.listening import LIVE, AddressTaken, listen
from holdfast.settings.model import Settings
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import RetrySettings
from holdfast.words import TaskId

START_RETRY = RetrySettings(first="200ms", longest="1s")
"""For what someone is waiting for."""
_ANSWER_SECONDS = 2.0
DRIVER = "driver"
"""What the driver calls itself where an instance says "app"."""


def freed_within(settings: Settings) -> timedelta:
    """How long a driver that was taken over may hold its ports and folders."""
    return settings.stop_timeout + timedelta(seconds=5)


def check_places(app: str, settings: Settings, tasks: Collection[TaskId]) -> None:
    """Raises if a program that isn't an instance or the driver of this app holds what the app needs."""
    own = 0 if settings.instances == "external" else min(settings.instances, len(tasks))
    rest, numbers = settings.rest, range(own)
    if rest.enabled:
        for number in numbers:
            _check_port(rest, rest.port + number if rest.port else 0, "rest.port", {"app": app})
        _check_port(rest, rest.driver_metrics_port, "rest.driver_metrics_port", {DRIVER: app})
    folders = [settings.state_dir(app) / f"{app}-{number}" for number in numbers]
    state_dir.check_free(folders, lambda name: name.rpartition("-")[0] == app)


def _check_port(rest: RestSettings, port: int, setting: str, own: Mapping[str, str]) -> None:
    """Raises if a program has the port that doesn't answer what one of this app answers."""
    try:
        listen(rest.host, port, setting, authenticates=rest.authenticates, insecure=rest.insecure).close()
    except AddressTaken:
        if not own.items() <= _live(rest, port).items():
            raise


def _live(rest: RestSettings, port: int) -> Mapping[str, object]:
    """What listens there answers to a question that needs no token; empty if it isn't HTTP or takes too long."""
    connection = _connection(rest, port)
    try:
        connection.request("GET", LIVE)
        answer = json.loads(connection.getresponse().read(1 << 20))
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}


def _connection(rest: RestSettings, port: int) -> http.client.HTTPConnection:
    if rest.tls_cert_file is None:
        return http.client.HTTPConnection(rest.host, port, timeout=_ANSWER_SECONDS)
    # Nothing is sent that a stranger may not know, and a stranger that pretends to be this app only delays a start.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(rest.tls_cert_file, rest.tls_key_file)  # of use where clients have to show one
    return http.client.HTTPSConnection(rest.host, port, timeout=_ANSWER_SECONDS, context=context)
