"""When a failed attempt is tried again."""

from __future__ import annotations

import random

# Jitter spreads jobs that failed together; it only lengthens the wait, and never past the ceiling.
JITTER = 0.2


def wait(attempt: int, *, base: float, ceiling: float, luck: float | None = None) -> float:
    """Seconds to wait after failed attempt number `attempt` (from 1): base · 2^(attempt-1), up to 20 % longer.

    `luck`, 0 to 1, stands for the random part in tests.
    """
    # The exponent is bounded before the power is taken: 2^2,000,000 would not be a float.
    doubled = base * 2.0 ** min(attempt - 1, 60)
    jittered = min(doubled, ceiling) * (1 + JITTER * (random.random() if luck is None else luck))
    return min(jittered, ceiling)
