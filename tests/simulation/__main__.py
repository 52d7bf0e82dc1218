"""``python -m tests.simulation --seeds N --from S``: runs many fault stories.

It prints statistics and transitions that were never taken; for each story that fails its seed, the
broken invariant, and the shortest story that still breaks it. It exits with 1 if one failed. With
``--state FILE`` an interrupted run continues where it was.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.simulation import running, shrinking, stories

PROGRESS_S = 15.0


def main() -> int:
    """Run the stories."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many stories")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1, help="how many tell at once")
    parser.add_argument("--state", type=Path, help="file that remembers which were told")
    parser.add_argument("--summary", type=Path, help="file that holds the summary at any time")
    parser.add_argument("--no-shrink", action="store_true", help="tell failing stories as drawn")
    parser.add_argument(
        "--failures-max", type=int, default=5, help="begin no more after so many fail"
    )
    parser.add_argument("--seconds", type=float, help="begin no story after so long")
    options = parser.parse_args()
    began = shown = time.monotonic()
    try:
        book = running.Book(options.state)
    except running.OtherCodeError as error:
        print(error, file=sys.stderr)
        return 1

    def due() -> Iterator[int]:
        seeds = range(options.first, options.first + options.seeds)
        for seed in (seed for seed in seeds if seed not in book.results):
            if options.seconds is not None and time.monotonic() - began > options.seconds:
                return
            yield seed

    results = running.many(due(), options.processes)
    for result in results:
        book.add(result)
        if result.checker:
            print(f"seed {result.seed} fails: {result.error}", flush=True)
        if len(book.failed()) >= options.failures_max:
            results.close()
            break
        if time.monotonic() - shown > PROGRESS_S:
            shown = time.monotonic()
            _keep(options.summary, book.summary(shown - began))
            of = f"{len(book.results)} of {options.seeds} stories"
            print(f"{of} in {shown - began:.0f} s, {len(book.failed())} fail", flush=True)
    summary = book.summary(time.monotonic() - began)
    _keep(options.summary, summary)
    print(summary)
    for checker, failures in itertools.groupby(
        sorted(book.failed(), key=lambda one: (one.checker, one.seed)), lambda one: one.checker
    ):
        _show(next(failures).seed, checker, shrink=not options.no_shrink)
    return 1 if book.failed() else 0


def _keep(path: Path | None, summary: str) -> None:
    if path is not None:
        path.write_text(f"{summary}\n", encoding="utf-8")


def _show(seed: int, checker: str, *, shrink: bool) -> None:
    plan = stories.draw(seed)
    if shrink:
        plan = shrinking.shrink(plan, checker)
        print(f"shrunk: {shrinking.broken(plan)}")
    print(shrinking.text(plan), flush=True)


if __name__ == "__main__":
    sys.exit(main())
