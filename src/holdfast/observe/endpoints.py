"""/health and /metrics, as routes to hand to the REST application.

Live: the process answers. Ready: its tasks have caught up, so it can take requests. Stores: each one has just been
read. They are three questions because each "no" has another consequence: restart the process, send requests elsewhere,
look for the cause.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import metrics
from holdfast.observe.health import LastErrors, ProbeResult, check_stores
from holdfast.words import Version

RETRY_AFTER_SECONDS = 1


def endpoints(
    *,
    stores: Sequence[str],
    read: Callable[[str], Sequence[ProbeResult]],
    errors: LastErrors,
    not_ready: Callable[[], Sequence[str]],
    version: Callable[[], Version],
) -> list[Route]:
    """The routes. `not_ready` returns a sentence for each task that isn't ready; none means ready."""

    async def live(request: Request) -> Response:
        return _answer({"status": "live", "version": version()})

    async def ready(request: Request) -> Response:
        if reasons := not_ready():
            return _unavailable(
                {
                    "error": "not_ready",
                    "message": " ".join(reasons),
                    "what_to_do": "Ask again after the time in Retry-After; /v1/state shows how far each task is.",
                    "version": version(),
                }
            )
        return _answer({"status": "ready", "version": version()})

    async def store_health(request: Request) -> Response:
        healths = await asyncio.to_thread(check_stores, stores, read, errors)
        if missing := [health.store for health in healths if not health.available]:
            return _unavailable(
                {
                    "error": "stores_unavailable",
                    "message": f"{', '.join(missing)} can't be read in full.",
                    "what_to_do": "See `unavailable` of each store for its partitions and their errors.",
                    "version": version(),
                    "stores": healths,
                }
            )
        return _answer({"status": "available", "version": version(), "stores": healths})

    async def metrics_text(request: Request) -> Response:
        text, content_type = metrics.expose(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    return [
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route("/health/stores", store_health),
        Route("/metrics", metrics_text),
    ]


def _answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def _unavailable(body: object) -> Response:
    return _answer(body, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})
