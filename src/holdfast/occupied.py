"""The ports and folders that an app needs on this machine, checked before its driver takes over.

What the app's own driver before holds is free soon, because the takeover ends that driver. What any other program holds
is an error at once, and the driver that runs goes on.
"""

import http.client
import json
from collections.abc import Callable, Collection
from datetime import timedelta

from holdfast.instance import state_dir
from holdfast.query.listening import AddressTaken, listen
from holdfast.settings.model import Settings
from holdfast.settings.rest import RestSettings
from holdfast.settings.sections import RetrySettings
from holdfast.words import TaskId

START_RETRY = RetrySettings(first="200ms", longest="1s")
"""For what someone is waiting for."""
_ANSWER_SECONDS = 2.0


def freed_within(settings: Settings) -> timedelta:
    """How long a driver that was taken over may hold its ports and folders."""
    return settings.stop_timeout + timedelta(seconds=5)


def check_places(app: str, settings: Settings, tasks: Collection[TaskId]) -> None:
    """Raises if a program that isn't an instance or the driver of this app holds what the app needs."""
    own = 0 if settings.instances == "external" else min(settings.instances, len(tasks))
    rest, numbers = settings.rest, range(own)
    if rest.enabled:
        for number in numbers:
            port = rest.port + number if rest.port else 0
            _check_port(rest, port, "rest.port", lambda host, port: _is_instance(app, host, port))
        _check_port(
            rest,
            rest.driver_metrics_port,
            "rest.driver_metrics_port",
            lambda host, port: _is_driver(app, host, port),
        )
    folders = [settings.state_dir(app) / f"{app}-{number}" for number in numbers]
    state_dir.check_free(folders, lambda name: name.rpartition("-")[0] == app)


def _check_port(rest: RestSettings, port: int, setting: str, is_own: Callable[[str, int], bool]) -> None:
    try:
        listen(rest.host, port, setting, insecure=rest.insecure).close()
    except AddressTaken:
        if not is_own(rest.host, port):
            raise


def _is_instance(app: str, host: str, port: int) -> bool:
    try:
        answer = json.loads(_get(host, port, "/v1/state"))
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("app") == app


def _is_driver(app: str, host: str, port: int) -> bool:
    own = f'holdfast_app{{app="{app}"}} 1.0'
    return own in _get(host, port, "/metrics").splitlines()


def _get(host: str, port: int, path: str) -> str:
    """What listens there answers; empty if it isn't HTTP or takes too long."""
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().read(1 << 20).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
