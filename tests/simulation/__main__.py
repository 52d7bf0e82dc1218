"""``python -m tests.simulation --seeds N --from S``: many stories, counted.

Prints what was gone through and which transitions were never taken; of a story that fails its
seed, what broke, and the shortest story found that still breaks it. Exits 1 if one failed.
"""

import argparse
import sys
import time
from collections import Counter

from tests.simulation import shrinking, stories, telling

FAILURES_MAX = 5
PROGRESS_S = 15.0


def main() -> int:
    """Tell the stories."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--no-shrink", action="store_true", help="tell failing stories as drawn")
    parser.add_argument("--seconds", type=float, help="begin no story after so long")
    options = parser.parse_args()
    counts, failed, told = telling.Told(), Counter[str](), 0
    began = shown = time.monotonic()
    with telling.transitions() as taken:
        for seed in range(options.first, options.first + options.seeds):
            if options.seconds is not None and time.monotonic() - began > options.seconds:
                break
            told += 1
            try:
                counts.add(telling.tell(stories.draw(seed)))
            except telling.BrokenError as error:
                failed[error.checker] += 1
                print(f"seed {seed} fails: {error}", flush=True)
                _show(seed, error.checker, shrink=not options.no_shrink)
            if failed.total() >= FAILURES_MAX:
                break
            if time.monotonic() - shown > PROGRESS_S:
                shown = time.monotonic()
                print(f"{told} stories in {shown - began:.0f} s, {failed.total()} fail", flush=True)
    print(
        f"{told} stories in {time.monotonic() - began:.1f} s, {failed.total()} fail: {dict(failed)}"
    )
    print(f"{counts}")
    for name, missing in telling.never_taken(taken).items():
        whole = len(telling.TABLES[name])
        print(f"{name}: {whole - len(missing)} of {whole} transitions taken; never: {missing}")
    return 1 if failed else 0


def _show(seed: int, checker: str, *, shrink: bool) -> None:
    plan = stories.draw(seed)
    if shrink:
        plan = shrinking.shrink(plan, checker)
        print(f"shrunk: {shrinking.broken(plan)}")
    print(shrinking.text(plan), flush=True)


if __name__ == "__main__":
    sys.exit(main())
