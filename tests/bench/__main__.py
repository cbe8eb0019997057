"""``python -m tests.bench``: everything that is measured."""

import sys

from tests.bench import backups, queueing, tagging

sys.exit(max([tagging.main(), queueing.main(), backups.main()]))
