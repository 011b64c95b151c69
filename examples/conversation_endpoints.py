"""The endpoints of `conversations.py`: what other programs ask about a user or a message.

    GET /api/state/users/{id}/session              the current session of a user
    GET /api/state/metrics/{name}/windows?hours=1  messages of a user per window of 5 minutes
    GET /api/state/audit/{id}                      who has sent a message

Every instance imports this module. So it is not the main program, and needs neither Spark nor the rest of the app:
stores are named, and their values are plain dicts and numbers.
"""

from typing import Any

import holdfast as hf

HOUR_MS = 3_600_000


@hf.endpoint("/api/state/users/{id}/session", reads="user-sessions")
def session(stores: hf.StoreViews, id: str) -> dict[str, Any] | None:
    """The current session of a user."""
    found: dict[str, Any] | None = stores["user-sessions"].get(id)
    return found


@hf.endpoint("/api/state/metrics/{name}/windows", reads="metrics")
def windows(stores: hf.StoreViews, name: str, hours: int = 1) -> list[dict[str, int]]:
    """How many messages a user has sent in each window of 5 minutes, within the last hours."""
    found = stores["metrics"].fetch(name, from_=stores.time - hours * HOUR_MS)
    return [{"start": start, "messages": count} for start, count in found]


@hf.endpoint("/api/state/audit/{id}", reads="audit")
def audited(stores: hf.StoreViews, id: str) -> dict[str, Any] | None:
    """Who has sent a message, when, and how long it was."""
    found: dict[str, Any] | None = stores["audit"].get(id)
    return found
