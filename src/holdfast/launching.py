"""Starts the process of an instance, with its configuration, and waits until it has joined its group.

The process gets its configuration, which may have secrets, on standard input, and reports its addresses on a separate
pipe. Its standard output is the app's standard error, so a user's modules may print.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import Interrupted
from holdfast.instance.config import InstanceConfig, encode
from holdfast.instances import InstanceFailed
from holdfast.settings.model import Settings

logger = logging.getLogger(__name__)

_STANDARD_ERROR = 2
_LOOK_MILLIS = 100
_WARN_SECONDS = 15.0
"""An instance that comes up takes a second or two, and up to ten while it waits for a former process of its id."""
_LONGEST_SECONDS = 120.0


_REASONS = (
    "Its own messages are above. Check that the log answers, that modules of yours that it imports don't hang, and "
    "that this machine isn't overloaded."
)


@dataclass(frozen=True)
class Launched:
    """An instance that listens."""

    process: subprocess.Popen[bytes]
    address: str
    rest_address: str | None


class InstanceNotStarted(InstanceFailed):
    """A process ended before it listened. Another instance of the app may be ending, and frees its folder and port."""


def config_of(app: str, id: str, settings: Settings) -> InstanceConfig:
    """The configuration of an instance by the settings of its app."""
    return InstanceConfig(
        app=app,
        name=id,
        log_url=settings.log_url(app),
        state_dir=str(settings.state_dir(app) / id),
        standbys=settings.standbys,
        stop_seconds=settings.stop_timeout.total_seconds() / 2,
        log=settings.log,
        memory=settings.memory,
        state=settings.state,
        restore=settings.restore,
        snapshots=settings.snapshots,
        group=settings.group,
        rest=settings.rest,
        sql=settings.sql,
        retry=settings.retry,
        security=settings.security,
    )


def launch(config: InstanceConfig, stopped: Callable[[], bool]) -> Launched:
    """Starts a process and waits until it reports its addresses. One that doesn't in two minutes is killed."""
    reading, writing = os.pipe()
    with open(reading, "rb") as ready:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "instance"],
                stdin=subprocess.PIPE,
                stdout=_STANDARD_ERROR,
                pass_fds=(writing,),
                # Instances import a user's options hooks, engines and codecs by name.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # Ctrl-C in the terminal must only reach the app, which stops its instances after the last version.
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            assert process.stdin is not None
            config = msgspec.structs.replace(config, ready_fd=writing, parent=os.getpid())
            process.stdin.write(encode(config) + b"\n")
            process.stdin.flush()
            readable = select.poll()  # unlike select(), it takes file descriptors above 1023
            readable.register(ready, select.POLLIN)
            began, warnings = SYSTEM_CLOCK.monotonic(), 0
            while not readable.poll(_LOOK_MILLIS):
                waited = SYSTEM_CLOCK.monotonic() - began
                if waited >= _LONGEST_SECONDS:
                    raise InstanceNotStarted(
                        f"Instance {config.name} (process {process.pid}) had not come up after {waited:.0f} s, and was "
                        f"killed. {_REASONS}"
                    )
                if waited >= (warnings + 1) * _WARN_SECONDS:
                    warnings += 1
                    logger.warning(
                        "instance %s (process %d) hasn't come up in %.0f s, and is waited for until %.0f s. %s",
                        config.name,
                        process.pid,
                        waited,
                        _LONGEST_SECONDS,
                        _REASONS,
                    )
                if stopped():
                    raise Interrupted("The app was stopped while an instance was being started.")
                if process.poll() is not None:  # a child that it left behind may hold the pipe
                    return _listening(config, process, b"")
            return _listening(config, process, ready.readline())
        except BaseException:
            process.kill()
            process.wait()
            raise


def _listening(config: InstanceConfig, process: subprocess.Popen[bytes], line: bytes) -> Launched:
    if not line:
        code = process.wait()
        raise InstanceNotStarted(
            f"Instance {config.name} ended with code {code} before it listened. Its own messages are above."
        )
    report = json.loads(line)
    if "error" in report:
        process.wait()
        kind = InstanceNotStarted if report["held"] else InstanceFailed
        raise kind(f"Instance {config.name} could not start: {report['error']}")
    return Launched(process, report["flight"], report.get("rest"))
