"""REST as a service of an instance: the companion that `instance.process.main` takes.

    def rest(instance: Instance) -> RestService:
        errors = LastErrors(SystemClock())
        reader = store_reader(instance, errors.record)
        return RestService(instance, reader, more=endpoints(
            stores=reader.names(), read=reader.probe, errors=errors,
            not_ready=lambda: not_ready(instance), version=lambda: readable_version(instance)))

    main(config, rest if config.rest.enabled else None)

The companion is stopped before the instance, so no request meets a replica that is closing.
"""

from collections.abc import Callable, Mapping, Sequence

from starlette.routing import BaseRoute

from holdfast.errors import HoldfastError
from holdfast.instance.instance import Instance
from holdfast.query.reader import StoreReader
from holdfast.query.rest import AppStateInfo, TaskInfo, create_app
from holdfast.query.server import serve
from holdfast.query.task_readers import TaskReaders
from holdfast.states import AppState
from holdfast.words import NOTHING, Version


class RestService:
    """REST while the instance runs. Once constructed it listens, on the address in the instance's configuration."""

    def __init__(self, instance: Instance, reader: StoreReader, more: Sequence[BaseRoute] = ()) -> None:
        config = instance.config
        app = create_app(reader, lambda: state_of(instance), more)
        self._reader = reader
        self._server = serve(app, host=config.rest.host, port=config.rest.port)
        self.url = self._server.url

    def addresses(self) -> Mapping[str, str]:
        return {"rest": self.url}

    def stop(self) -> None:
        """Returns within two seconds, whatever requests are running."""
        self._server.stop()
        self._reader.close()


def store_reader(
    instance: Instance, on_error: Callable[[str, HoldfastError], None] = lambda store, error: None
) -> StoreReader:
    """A reader of all stores of the app, from this instance. The instance must have been started."""
    tasks = TaskReaders(instance)
    return StoreReader(instance.log.app, tasks, on_error, tasks.close, instance.source)


def state_of(instance: Instance) -> AppStateInfo:
    """What /v1/state answers. Until the driver has sent the app's state, it is that of this instance."""
    told = instance.app_state
    ready = instance.ready
    tasks = [
        TaskInfo(
            task=str(hosted.replica.task),
            phase=hosted.progress.phase.value,
            version=hosted.replica.version,
            ready=hosted.caught_up,
            error=hosted.progress.error,
        )
        for hosted in instance.hosted()
    ]
    return AppStateInfo(
        app=instance.log.app.id,
        instance=instance.config.name,
        state=told.state if told is not None else str(AppState.RUNNING if ready else AppState.RESTORING),
        version=readable_version(instance),
        committed=instance.source.newest_known,
        ready=ready,
        tasks=tuple(tasks),
        cause=None if told is None else told.cause,
    )


def readable_version(instance: Instance) -> Version:
    """The version that every task of this instance can be read at."""
    return min((hosted.replica.published.version or NOTHING for hosted in instance.hosted()), default=NOTHING)


def not_ready(instance: Instance) -> list[str]:
    """Why the instance isn't ready: one sentence per task that isn't."""
    newest = instance.source.newest_known
    sentences = []
    for hosted in instance.hosted():
        if not hosted.caught_up:
            replica, progress = hosted.replica, hosted.progress
            why = f" ({progress.error})" if progress.error else ""
            sentences.append(f"Task {replica.task} is {progress.phase}: version {replica.version} of {newest}{why}.")
    return sentences
