"""How long to wait before another attempt. It is the only backoff: `retry` uses it, and so do loops of their own.

The longest possible wait doubles with every failure, and the wait is drawn from its upper half, so that many tasks that
failed together don't all come back together.
"""

from holdfast.chance import SYSTEM_RANDOM, Random
from holdfast.settings.sections import RetrySettings


def backoff(failures: int, settings: RetrySettings, random: Random = SYSTEM_RANDOM) -> float:
    """Seconds to wait after this many failures in a row.

    >>> settings = RetrySettings(first="1s", longest="5s")
    >>> [round(backoff(failures, settings, Random(7)), 2) for failures in (1, 2, 3, 4, 5000)]
    [0.66, 1.32, 2.65, 3.31, 3.31]
    """
    doublings = min(failures - 1, 32)  # beyond that a float overflows, and every `longest` is reached
    bound = min(settings.first.total_seconds() * 2**doublings, settings.longest.total_seconds())
    return random.uniform(bound / 2, bound)
