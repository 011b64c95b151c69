"""The only access to randomness: random numbers and unique ids.

The linter rejects `random`, `secrets` and `uuid.uuid4` in every other module. Code whose behaviour depends on chance
takes a `Random`, so a test can repeat it with a seed.
"""

from random import Random, SystemRandom
from uuid import UUID

__all__ = ["SYSTEM_RANDOM", "Random", "new_id"]

SYSTEM_RANDOM: Random = SystemRandom()
"""The operating system's randomness. It has no state of its own, so forked processes never draw the same numbers."""


def new_id(random: Random = SYSTEM_RANDOM) -> str:
    """A unique id of 32 hexadecimal digits: a random UUID.

    >>> new_id(Random(1))
    'cd613e30d8f14adf91b7584a2265b1f5'
    """
    return UUID(int=random.getrandbits(128), version=4).hex
