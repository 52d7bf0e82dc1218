"""``python -m tests.soak``."""

import sys

from tests.soak import churn

sys.exit(churn.main())
