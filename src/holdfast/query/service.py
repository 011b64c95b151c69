"""REST as a service of an instance: the companion that `instance.process.main` takes.

The companion is stopped before the instance, so no request gets a replica that is closing.
"""

from collections.abc import Mapping

from holdfast.instance.instance import Instance
from holdfast.query.health import AppStateInfo, TaskInfo
from holdfast.query.reader import StoreReader
from holdfast.query.rest import create_app
from holdfast.query.server import serve
from holdfast.query.task_readers import TaskReaders
from holdfast.states import AppState
from holdfast.words import NOTHING


class RestService:
    """REST while the instance runs. Once constructed it listens, on the address in the instance's configuration."""

    def __init__(self, instance: Instance) -> None:
        rest = instance.config.rest
        self._tasks = TaskReaders(instance)
        self.reader = StoreReader(instance.source, self._tasks)
        app = create_app(self.reader, lambda: state_of(instance))
        self._server = serve(app, rest)
        self.url = self._server.url

    def addresses(self) -> Mapping[str, str]:
        return {"rest": self.url}

    def start(self) -> None:
        """It answers already."""

    def stop(self) -> None:
        """Returns within two seconds, whatever requests are running."""
        self._server.stop()
        self.reader.close()
        self._tasks.close()


def state_of(instance: Instance) -> AppStateInfo:
    """What /v1/state answers. Until the driver has sent the app's state, it is that of this instance."""
    sent, ready = instance.app_state, instance.ready
    tasks = tuple(
        TaskInfo(
            task=str(hosted.replica.task),
            phase=hosted.progress.phase.value,
            version=hosted.replica.version,
            ready=hosted.caught_up,
            error=hosted.progress.error,
        )
        for hosted in instance.hosted()
    )
    return AppStateInfo(
        app=instance.log.app.id,
        instance=instance.config.name,
        state=sent.state if sent is not None else str(AppState.RUNNING if ready else AppState.RESTORING),
        version=min((hosted.replica.published.version or NOTHING for hosted in instance.hosted()), default=NOTHING),
        committed=instance.source.newest_known,
        ready=ready,
        tasks=tasks,
        cause=None if sent is None else sent.cause,
    )
