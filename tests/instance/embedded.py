"""One store in an instance process, as an app starts it."""

from holdfast.group_instances import GroupInstances
from holdfast.log.appfile import AppSpec
from holdfast.log.commits import BEGINNING
from holdfast.log.log import Log
from holdfast.log.storage import open_storage
from holdfast.settings.model import Settings
from holdfast.stores.spec import StoreSpec
from holdfast.words import TaskId
from tests.log.making import subtopologies_of


def start_once(chosen: Settings, spec: StoreSpec) -> None:
    """Starts an instance with this store, waits until it is ready, and stops it; its state stays on disk."""
    app = AppSpec(id="app", partitions=1, stores=(spec,), subtopologies=subtopologies_of({spec.name: 0}))
    log = Log.create_or_open(open_storage(chosen.log_url("app")), app)
    failures: list[BaseException] = []
    instances = GroupInstances(
        "app", chosen, app_file=log.app.number, on_event=lambda event: None, on_failure=failures.append
    )
    try:
        instances.assign([TaskId(0, 0)])
        instances.wait_until_ready(BEGINNING)
    finally:
        instances.stop(30.0)
    assert failures == []
