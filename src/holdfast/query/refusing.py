"""Requests that are not allowed: counted, and named in the log once per address and minute.

A refused client may ask all the time, so more lines would only fill the log.
"""

import logging

from starlette.types import Scope

from holdfast import metrics
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.instance.callers import NamedOnce
from holdfast.query.grants import address
from holdfast.query.problems import Problem

_LOG = logging.getLogger(__name__)
_refused = metrics.counter(
    "holdfast_rest_requests_refused", "REST requests that were not allowed, by reason.", ["error"]
)


class RefusedRequests:
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._named = NamedOnce(clock)

    def report(self, scope: Scope, problem: Problem) -> None:
        _refused.labels(problem.error).inc()
        where = address(scope)
        if self._named.first(where):
            _LOG.warning(
                "refused a request from %s: %s More requests from there are counted, and named once per minute.",
                where,
                problem.message,
            )
