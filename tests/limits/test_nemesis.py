"""Everything at once, at random: workers killed and frozen, replicas killed, connections cut, jobs cancelled."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.factories import make_course
from tests.invariants import Watch
from tests.limits.harness import Site, Timer, freeze, measured, scaled, thaw
from tests.limits.load import PENDING, Load

SECONDS = scaled(120, 8)
LEASE = {"HUB_QUEUE_LEASE": "3", "HUB_QUEUE_RENEW": "1", "HUB_QUEUE_RETRY_BASE": "0.2"}
CUT = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and application_name like 'hub %' and random() < 0.5
"""


@pytest.mark.parametrize("seed", range(scaled(3, 1)))
def test_random_faults_all_at_once(site: Callable[..., Site], watch: Watch, seed: int) -> None:
    hub = site(**LEASE, **PENDING)
    team = hub.team()
    load = Load(hub, team, [make_course(hub.database, team, 400) for _ in range(4)])
    nemesis = Nemesis(hub, seed=seed)
    with load.going():
        nemesis.strike(SECONDS)
    hub.await_jobs()
    measured("faults", dict(nemesis.struck))
    load.check()


def test_connections_cut_all_the_time(site: Callable[..., Site], watch: Watch) -> None:
    hub = site(**PENDING)
    team = hub.team()
    load = Load(hub, team, [make_course(hub.database, team, 100) for _ in range(4)])
    whole, cuts = Timer(), 0
    with load.going():
        while whole.seconds < scaled(60, 4):
            cuts += len(hub.rows(CUT))
            threading.Event().wait(0.1)
    hub.await_jobs()
    measured("connections cut", cuts)
    load.check()
    assert all(program.process.poll() is None for program in (*hub.web, *hub.workers))
    # An outage is nobody's failure.
    assert hub.count("select count(*) from queue.job where attempt > 1 or state = 'failed'") == 0


class Nemesis:
    """Does harm, and heals each harm before the next."""

    def __init__(self, hub: Site, seed: int) -> None:
        self._hub = hub
        self._chance = random.Random(seed)
        self.struck: dict[str, int] = defaultdict(int)

    def strike(self, seconds: float) -> None:
        """Go on for so long."""
        whole = Timer()
        harms = (self._kill_worker, self._freeze_worker, self._kill_web, self._cut, self._stop_worker)
        while whole.seconds < seconds:
            harm = self._chance.choice(harms)
            self.struck[harm.__name__.strip("_")] += 1
            harm()
            self._pause(1)

    def _kill_worker(self) -> None:
        self._hub.workers.pop(self._which()).kill()
        self._hub.add_worker()

    def _stop_worker(self) -> None:
        self._hub.workers.pop(self._which()).terminate()
        self._hub.add_worker()

    def _freeze_worker(self) -> None:
        worker = self._hub.workers[self._which()]
        freeze(worker)
        self._pause(5)
        thaw(worker)

    def _kill_web(self) -> None:
        which = self._which()
        # Its main process dies, and what it has started must not be left behind.
        self._hub.web[which].kill()
        self._hub.web[which].close()
        fresh = self._hub.add_web()
        self._hub.web.remove(fresh)
        self._hub.web[which] = fresh

    def _cut(self) -> None:
        self._hub.rows(CUT)

    def _which(self) -> int:
        return self._chance.randrange(2)

    def _pause(self, longest: float) -> None:
        threading.Event().wait(self._chance.uniform(0, longest))
