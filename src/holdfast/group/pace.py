"""How often heartbeats are written."""

_FEW = 10


def interval_for(members: int, interval: float, timeout: float) -> float:
    """The seconds between two heartbeats: with more than ten members longer, and three within a session timeout.

    >>> interval_for(3, 2.0, 60.0), interval_for(25, 2.0, 60.0), interval_for(1000, 2.0, 60.0)
    (2.0, 5.0, 20.0)
    """
    return max(interval, min(interval * members / _FEW, timeout / 3))
