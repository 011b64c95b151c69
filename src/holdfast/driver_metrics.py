"""The driver's own metrics over HTTP: batches, records and sinks. The instances serve their own."""

from collections.abc import Callable

from prometheus_client import start_http_server

from holdfast import metrics
from holdfast.errors import Held
from holdfast.occupied import START_RETRY, freed_within
from holdfast.query.listening import listen
from holdfast.retry import retrying
from holdfast.settings.model import Settings

_app = metrics.gauge("holdfast_app", "1 for an app that this driver runs.", ["app"])


class DriverMetrics:
    """The metrics while they are served. Once constructed, it listens."""

    def __init__(self, app: str, settings: Settings, pause: Callable[[float], None]) -> None:
        rest, port = settings.rest, settings.rest.driver_metrics_port

        def check() -> None:
            listen(rest.host, port, "rest.driver_metrics_port", insecure=rest.insecure).close()

        # The driver before, which has just been taken over, may still have the port.
        deadline = freed_within(settings)
        retrying(check, START_RETRY, deadline=deadline, sleep=pause, may_pass=lambda error: isinstance(error, Held))
        self._server, self._thread = start_http_server(port, rest.host, metrics.REGISTRY)
        self.address = f"http://{rest.host}:{self._server.server_port}/metrics"
        self._app = app
        _app.labels(app).set(1)

    def stop(self, seconds: float) -> None:
        """Frees the port. Stopping twice is fine."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(seconds)
        _app.labels(self._app).set(0)
