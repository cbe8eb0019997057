"""``python -m tests.bench``: everything that is measured."""

import sys

from tests.bench import tagging

sys.exit(tagging.main())
