"""REST beside an instance: what `instance.process.main` takes as its companion.

    def rest(instance: Instance) -> RestBeside:
        errors = LastErrors(SystemClock())
        reader = reader_of(instance, errors.note)
        return RestBeside(instance, reader, more=endpoints(
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
from holdfast.query.tasks import Tasks
from holdfast.states import AppState
from holdfast.words import NOTHING, Version


class RestBeside:
    """REST for as long as the instance runs. It listens, on the address the instance's config has, when it is made."""

    def __init__(self, instance: Instance, reader: StoreReader, more: Sequence[BaseRoute] = ()) -> None:
        config = instance.config
        app = create_app(reader, lambda: state_of(instance), more)
        self._reader = reader
        self._server = serve(app, host=config.rest.host, port=config.rest.port)
        self.url = self._server.url

    def addresses(self) -> Mapping[str, str]:
        return {"rest": self.url}

    def stop(self) -> None:
        """Ends within two seconds, whatever is under way."""
        self._server.stop()
        self._reader.close()


def reader_of(
    instance: Instance, on_error: Callable[[str, HoldfastError], None] = lambda store, error: None
) -> StoreReader:
    """A reader of all the app's stores, as this instance reaches them. The instance must have been started."""
    tasks = Tasks(instance)
    return StoreReader(instance.log.app, tasks, on_error, tasks.close, instance.source)


def state_of(instance: Instance) -> AppStateInfo:
    """What /v1/state tells. Without a driver's word the app is what this instance is: restoring or running."""
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
    """What is missing until the instance is ready, a sentence a task."""
    newest = instance.source.newest_known
    sentences = []
    for hosted in instance.hosted():
        if not hosted.caught_up:
            replica, progress = hosted.replica, hosted.progress
            why = f" ({progress.error})" if progress.error else ""
            sentences.append(f"Task {replica.task} is {progress.phase}: version {replica.version} of {newest}{why}.")
    return sentences
