"""REST as a service of an instance: the companion that `instance.process.main` takes.

The companion is stopped before the instance, so no request gets a replica that is closing.
"""

from collections.abc import Mapping
from contextlib import ExitStack

from holdfast.instance.instance import Instance
from holdfast.instance.messages import AppStateMessage
from holdfast.query.health import AppStateInfo, TaskInfo
from holdfast.query.reader import StoreReader
from holdfast.query.rest import create_app
from holdfast.query.routing import places_of
from holdfast.query.server import bind
from holdfast.query.task_readers import TaskReaders
from holdfast.query.watch import Watches
from holdfast.sql.workers import Workers
from holdfast.states import AppState
from holdfast.words import NOTHING


class RestService:
    """REST while the instance runs, on the address in its configuration. Requests wait until it is started."""

    def __init__(self, instance: Instance) -> None:
        rest = instance.config.rest
        self.url = ""  # until it is known, a few microseconds after the first request may have come
        self._tasks = TaskReaders(instance)
        self.reader = StoreReader(instance.source, self._tasks, max_page=rest.max_page)
        self.watches = Watches(instance.source, self.reader.specs)
        self._workers = Workers(instance.config.sql)
        self._closing = ExitStack()
        app = create_app(
            self.reader,
            lambda: state_of(instance),
            places=lambda: places_of(instance, self.url),
            watches=self.watches,
            workers=self._workers,
            settings=rest,
            closing=self._closing,
        )
        self._server = bind(app, rest)
        self.url = self._server.url

    def addresses(self) -> Mapping[str, str]:
        return {"rest": self.url}

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Returns within two seconds, whatever requests are running."""
        self.watches.end()
        self._server.stop()
        self.watches.close()
        self._workers.close()
        self._closing.close()
        self.reader.close()
        self._tasks.close()


def state_of(instance: Instance) -> AppStateInfo:
    """What /v1/state answers: the app's state as its driver has sent it, or why that isn't known."""
    sent, ready = _app_state(instance), instance.ready
    tasks = tuple(
        TaskInfo(
            task=str(hosted.replica.task),
            phase=hosted.progress.phase.value,
            version=hosted.replica.version,
            ready=hosted.readable,
            error=hosted.progress.error,
        )
        for hosted in instance.hosted()
    )
    return AppStateInfo(
        app=instance.log.app.id,
        instance=instance.config.name,
        state=sent.state,
        version=min((hosted.replica.published.version or NOTHING for hosted in instance.hosted()), default=NOTHING),
        committed=instance.source.newest_known,
        ready=ready,
        tasks=tasks,
        cause=sent.cause,
        driver_metrics=sent.driver_metrics,
    )


def _app_state(instance: Instance) -> AppStateMessage:
    sent = instance.app_state
    if instance.driver_gone and (sent is None or sent.state != str(AppState.ERROR)):
        return AppStateMessage(
            "no_driver", "The app's driver has ended. Answers stay at this version until it is back."
        )
    return sent or AppStateMessage("unknown", "The app's driver hasn't said anything to this instance yet.")
