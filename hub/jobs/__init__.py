"""The kinds of jobs, one module each, and what stands above the queue for jobs that people start.

Importing this package imports every module in it, so each kind registers itself: a new kind is one new module.
"""

from importlib import import_module
from pkgutil import iter_modules

from hub.queue import kind
from hub.queue.kind import Kind

# The queue of the jobs that people start; only its kinds count for the limits of admission.
PEOPLE = "workspace.jobs"


def kinds() -> dict[str, Kind]:
    """The kinds that people may start, by name."""
    return kind.of_queue(PEOPLE)


for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
