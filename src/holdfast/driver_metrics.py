"""The driver's own metrics over HTTP: batches, records and sinks. The instances serve their own.

They have the address, the certificate and the clients of REST; only the port is another one.
"""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import metrics
from holdfast.errors import Held
from holdfast.occupied import DRIVER, START_RETRY, freed_within
from holdfast.query.access import guarded
from holdfast.query.health import metrics_text
from holdfast.query.listening import LIVE, listen
from holdfast.query.problems import answer_problem, json_response
from holdfast.query.server import serve
from holdfast.retry import retrying
from holdfast.settings.model import Settings

_app = metrics.gauge("holdfast_app", "1 for an app that this driver runs.", ["app"])


class DriverMetrics:
    """The metrics while they are served. Once constructed, it listens."""

    def __init__(self, app: str, settings: Settings, pause: Callable[[float], None]) -> None:
        rest, port = settings.rest, settings.rest.driver_metrics_port

        def check() -> None:
            asked = {"authenticates": rest.authenticates, "insecure": rest.insecure}
            listen(rest.host, port, "rest.driver_metrics_port", **asked).close()

        async def live(request: Request) -> Response:
            return json_response({"status": "live", DRIVER: app})

        # The driver before, which has just been taken over, may still have the port.
        deadline = freed_within(settings)
        retrying(check, START_RETRY, deadline=deadline, sleep=pause, may_pass=lambda error: isinstance(error, Held))
        served = Starlette(
            routes=[Route("/metrics", metrics_text), Route(LIVE, live)],
            exception_handlers=dict.fromkeys((HTTPException, Exception), answer_problem),
        )
        self._server = serve(guarded(served, rest), rest, port)
        self.address = f"{self._server.url}/metrics"
        self._app = app
        _app.labels(app).set(1)

    def stop(self, seconds: float) -> None:
        """Frees the port. Stopping twice is fine."""
        self._server.stop(seconds)
        _app.labels(self._app).set(0)
