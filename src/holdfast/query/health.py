"""What /health, /metrics and /v1/state answer.

Live: the process answers. Ready: its tasks have caught up, so it can take requests. Stores: each one has just been
read. They are three questions because each "no" has another consequence: restart the process, send requests elsewhere,
look for the cause.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast import metrics
from holdfast.query.last_errors import LastError
from holdfast.query.operations import PLAIN, Call, Operation
from holdfast.query.problems import Problem, json_response
from holdfast.query.reader import StoreReader


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One task that this instance hosts."""

    task: str
    phase: str
    version: int
    ready: bool
    error: str | None = None


class AppStateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What /v1/state answers: the app's state as its driver last sent it, and the progress of this instance."""

    app: str
    instance: str
    state: str
    version: int
    """The version that every task of this instance can be read at."""
    committed: int
    ready: bool
    tasks: tuple[TaskInfo, ...] = ()
    cause: str | None = None
    driver_metrics: str | None = None
    """The address of the driver's own metrics; each instance has its own at /metrics."""


class Partitions(msgspec.Struct, frozen=True):
    all: int
    available: int


class StoreHealth(msgspec.Struct, frozen=True):
    """One store's health: it is available when every one of its partitions answers.

    `version` is the smallest over its partitions, None while none can be read.
    """

    store: str
    available: bool
    partitions: Partitions
    version: int | None
    unavailable: dict[str, str]
    last_error: LastError | None


class Health(msgspec.Struct, frozen=True):
    """The answer of /health/live and /health/ready."""

    status: Literal["live", "ready"]
    app: str
    version: int


class StoresHealth(msgspec.Struct, frozen=True):
    """The answer of /health/stores."""

    status: Literal["available"]
    version: int
    stores: tuple[StoreHealth, ...]


def health_operations(reader: StoreReader, state: Callable[[], AppStateInfo]) -> list[Operation]:
    """The operations of /health and /metrics."""

    async def live(call: Call) -> Response:
        now = state()
        return json_response(Health("live", now.app, now.version))

    async def ready(call: Call) -> Response:
        now = state()
        if reasons := [_not_ready(task, now.committed) for task in now.tasks if not task.ready]:
            what = "Ask again after the time in Retry-After; /v1/state shows how far each task is."
            raise Problem(503, "not_ready", " ".join(reasons), what, {"version": now.version})
        return json_response(Health("ready", now.app, now.version))

    async def stores(call: Call) -> Response:
        found = await asyncio.to_thread(lambda: [health_of(reader, spec.name) for spec in reader.specs.all()])
        healths, version = tuple(found), state().version
        if missing := [health.store for health in healths if not health.available]:
            what = "See `unavailable` of each store for its partitions and their errors."
            more = {"version": version, "stores": healths}
            raise Problem(503, "stores_unavailable", f"{', '.join(missing)} can't be read in full.", what, more)
        return json_response(StoresHealth("available", version, healths))

    async def all_metrics(call: Call) -> Response:
        return await metrics_text(call.request)

    return [
        Operation(
            "get_live",
            "/health/live",
            "Whether the process answers.",
            live,
            Health,
            tag="The app",
            returns="The process answers.",
        ),
        Operation(
            "get_ready",
            "/health/ready",
            "Whether its tasks have caught up.",
            ready,
            Health,
            errors=(503,),
            tag="The app",
            returns="All tasks of this instance have caught up.",
        ),
        Operation(
            "get_stores_health",
            "/health/stores",
            "Reads each store.",
            stores,
            StoresHealth,
            errors=(503,),
            tag="The app",
            returns="Every partition of every store can be read.",
        ),
        Operation(
            "get_metrics",
            "/metrics",
            "For Prometheus.",
            all_metrics,
            None,
            media=PLAIN,
            other_media=("application/openmetrics-text",),
            tag="The app",
            returns="All metrics of this process.",
        ),
    ]


async def metrics_text(request: Request) -> Response:
    """All metrics of this process."""
    text, content_type = metrics.expose(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": content_type})


def health_of(reader: StoreReader, store: str) -> StoreHealth:
    """The health of a store, found out by reading each of its partitions."""
    probes = reader.probe(store)
    versions = [probe.version for probe in probes if probe.version is not None]
    return StoreHealth(
        store=store,
        available=len(versions) == len(probes),
        partitions=Partitions(all=len(probes), available=len(versions)),
        version=min(versions, default=None),
        unavailable={str(probe.task): str(probe.error) for probe in probes if probe.error is not None},
        last_error=reader.last_errors.get(store),
    )


def _not_ready(task: TaskInfo, newest: int) -> str:
    # Everyone may ask this, so the error of a task, which can name files and hosts, is in /v1/state only.
    return f"Task {task.task} is {task.phase}: version {task.version} of {newest}."
