"""When a failed attempt is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.queue import backoff

BASES = st.floats(0.01, 3600)
CEILINGS = st.floats(0.01, 86400)


@given(st.integers(1, 2_000_000), BASES, CEILINGS)
def test_the_wait_doubles_up_to_the_ceiling(attempt: int, base: float, ceiling: float) -> None:
    wait = backoff.wait(attempt, base=base, ceiling=ceiling, luck=0.0)
    assert wait == min(base * 2.0 ** min(attempt - 1, 40), ceiling)


@given(st.integers(1, 2_000_000), BASES, CEILINGS, st.floats(0, 1))
def test_jitter_only_lengthens_by_a_fifth_at_most_and_never_past_the_ceiling(
    attempt: int, base: float, ceiling: float, luck: float
) -> None:
    plain = backoff.wait(attempt, base=base, ceiling=ceiling, luck=0.0)
    wait = backoff.wait(attempt, base=base, ceiling=ceiling, luck=luck)
    assert plain <= wait <= min(plain * 1.2 * (1 + 1e-12), ceiling)


@given(st.integers(1, 2_000_000), BASES, CEILINGS)
def test_luck_is_drawn_within_the_range(attempt: int, base: float, ceiling: float) -> None:
    wait = backoff.wait(attempt, base=base, ceiling=ceiling)
    assert backoff.wait(attempt, base=base, ceiling=ceiling, luck=0.0) <= wait
    assert wait <= backoff.wait(attempt, base=base, ceiling=ceiling, luck=1.0)


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 10), (2, 20), (3, 40), (7, 640), (8, 900), (2_000_000, 900)])
def test_the_documented_waits(attempt: int, seconds: float) -> None:
    assert backoff.wait(attempt, base=10, ceiling=900, luck=0.0) == seconds
