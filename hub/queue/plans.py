"""The schedules of all kinds as this deployment wants them: the kind's own expression, or what HUB_CRON_… says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hub.config import Settings
from hub.errors import ConfigError
from hub.queue import kind
from hub.queue.kind import Kind
from hub.queue.schedule import SKIP, Cron, Schedule, setting


@dataclass(frozen=True)
class Plan:
    """A kind with a schedule. `cron` is None if the schedule is off."""

    kind: Kind
    schedule: Schedule
    cron: Cron | None

    @property
    def name(self) -> str:
        """The schedule's name, which is its kind's."""
        return self.kind.name

    @property
    def text(self) -> str:
        """The expression in force; empty if the schedule is off."""
        return self.cron.text if self.cron else ""

    def known_as(self, text: str, time_zone: str) -> Plan:
        """The same under the expression that the workers know, which need not be that of this process's settings.

        Raises ValueError if this version of Hub cannot read it.
        """
        return replace(self, cron=_parsed(text, time_zone) if text else None)


def load(settings: Settings) -> dict[str, Plan]:
    """Every schedule by name. Raises ConfigError, naming the setting, for an expression that makes no sense."""
    kinds = sorted(kind.all_kinds().values(), key=lambda declared: declared.name)
    return {
        declared.name: Plan(declared, declared.schedule, _cron(settings, declared.name, declared.schedule))
        for declared in kinds
        if declared.schedule
    }


def _cron(settings: Settings, name: str, schedule: Schedule) -> Cron | None:
    text = settings.cron.get(setting(name), schedule.cron)
    try:
        return _parsed(text, schedule.time_zone) if text else None
    except ValueError as error:
        raise ConfigError(f"{setting(name)}: {error}") from None


_parsed = lru_cache(maxsize=1000)(Cron)


def unknown(settings: Settings) -> list[str]:
    """Settings of schedules that no kind has: misspelt, or of another version of Hub."""
    return sorted(settings.cron.keys() - {setting(name) for name in load(settings)})


def describe(settings: Settings) -> list[dict[str, Any]]:
    """The settings of all schedules, as `hub.config.describe` has the others."""
    return [
        {
            "name": setting(plan.name),
            "value": plan.text,
            "default": plan.schedule.cron,
            "unit": f"cron, {plan.schedule.time_zone}",
            "why": f"when {plan.name} runs; empty: never",
        }
        for plan in load(settings).values()
    ]


def longest_wait(declared: Kind, settings: Settings) -> float:
    """Seconds that a job of the kind waits for another attempt at the most.

    Where a tick would find the job of the one before still waiting, the waits are so short that they end well before:
    a sweep that fails does not miss its next tick.
    """
    waits = [settings.queue_retry_max]
    if declared.retry_max is not None:
        waits.append(declared.retry_max)
    retries = min(declared.attempts, settings.queue_max_attempts) - 1
    if declared.schedule and declared.schedule.overlap == SKIP and retries:
        cron = _cron(settings, declared.name, declared.schedule)
        waits.append(_shortest(cron) / 2 / retries if cron else float("inf"))
    return min(waits)


_shortest = lru_cache(maxsize=1000)(Cron.shortest)
