"""A short soak, with every fault at least once."""

from __future__ import annotations

import re
import sys
from contextlib import closing

from tests.processes import Program
from tests.soak.faults import WEIGHTS

BRIEF = {"SOAK_SECONDS": "5", "SOAK_JOBS": "300", "SOAK_SEED": "1"}


def test_nothing_is_lost_or_done_twice_whatever_goes_wrong() -> None:
    with closing(Program([sys.executable, "-m", "tests.soak"], BRIEF)) as soak:
        status = soak.wait(300)
        faults = soak.await_line("^faults: ")
    assert (status, soak.lines[-1]) == (0, "PASS"), soak.output
    assert {name for name, _ in re.findall(r"(\w+) (\d+)", faults)} == set(WEIGHTS)
    assert any("acknowledged: 300" in line for line in soak.lines)
