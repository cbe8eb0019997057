"""``python -m hub …`` is the ``hub`` command."""

from hub.cli import main

main()
