"""A controller whose core raises for a job called ``poison``, and for ``late`` once it is placed.

``python -m tests.integration.poisoned`` takes the options of ``python -m
reconciler.controller.process``.
"""

from typing import Any

from reconciler.controller import process
from reconciler.core import reconcile
from reconciler.model import desired
from reconciler.model.state import outcome, records


def decide(
    wanted: desired.Desired, observed: records.Observed, now: float, **options: Any
) -> outcome.Outcome:
    """Decide as the real core does, except for those jobs."""
    result = reconcile.reconcile(wanted, observed, now, **options)
    if "poison" in wanted.jobs or any(one.job == "late" for one in result.attempts):
        raise LookupError("nobody foresaw this")
    return result


if __name__ == "__main__":
    process.main(decide)
