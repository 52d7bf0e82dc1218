"""Runs stories of many seeds in several processes, and keeps the results on disk.

A file has one ``Result`` per line, so that a run of hours can be interrupted and continued. It
begins with a digest of the code; results of other code do not count.
"""

import gc
import hashlib
import time
from collections import Counter
from collections.abc import Generator, Iterable
from concurrent import futures
from multiprocessing import get_context
from pathlib import Path

import msgspec

from reconciler import package_data
from tests.simulation import sizes, stories, telling

#: Stories handed to each process before one of them is back.
AHEAD = 3
#: Objects made between two looks for cycles of references: stories make many, and few cycles.
COLLECT_EVERY = 50_000
_ROOT = package_data.checkout()
_CODE = ("reconciler", "tests/simulation")


class Result(msgspec.Struct, frozen=True):
    """Result of one seed's story.

    Attributes:
        size: with which the story was drawn.
        taken: how often each transition was taken, by table, as ``Before→After``.
        cpu_s: seconds of CPU time.
        checker: name of the broken invariant; empty if none.
        error: how it was broken.
    """

    seed: int
    size: str
    told: telling.Told
    taken: dict[str, dict[str, int]]
    cpu_s: float
    checker: str = ""
    error: str = ""


class Header(msgspec.Struct, frozen=True):
    """The first line of a file of results."""

    code: str


class OtherCodeError(RuntimeError):
    """An error for results of other code."""


def digest() -> str:
    """Return the digest of all code that a story depends on."""
    found = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            found.update(path.relative_to(_ROOT).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def one(seed: int) -> Result:
    """Run the story of a seed."""
    gc.set_threshold(COLLECT_EVERY, 20, 100)
    began = time.process_time()
    checker = error = ""
    told = telling.Told()
    plan = stories.draw(seed)
    with telling.transitions() as taken:
        try:
            told = telling.tell(plan)
        except telling.BrokenError as broken:
            checker, error = broken.checker, str(broken)
    cpu_s = round(time.process_time() - began, 3)
    return Result(seed, plan.size, told, telling.by_table(taken), cpu_s, checker, error)


def many(seeds: Iterable[int], processes: int) -> Generator[Result]:
    """Yield results as they come. Closing the generator ends the rest."""
    left = iter(seeds)
    with futures.ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        under_way: set[futures.Future[Result]] = set()
        try:
            while True:
                for seed in left:
                    under_way.add(pool.submit(one, seed))
                    if len(under_way) >= AHEAD * processes:
                        break
                if not under_way:
                    return
                done, under_way = futures.wait(under_way, return_when=futures.FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class Book:
    """All results so far, kept in a file if one is given.

    Raises:
        OtherCodeError: the file is of other code.
    """

    def __init__(self, path: Path | None) -> None:
        self.results: dict[int, Result] = {}
        self._path = path
        if path is None:
            return
        code = digest()
        if path.exists() and path.stat().st_size:
            self._read(path, code)
        else:
            path.write_bytes(msgspec.json.encode(Header(code)) + b"\n")

    def _read(self, path: Path, code: str) -> None:
        first, *lines = path.read_bytes().split(b"\n")
        header = msgspec.json.decode(first, type=Header)
        if header.code != code:
            raise OtherCodeError(
                f"{path} holds stories told with code {header.code}, this is {code}: "
                "name another file, or go back to that code"
            )
        *lines, torn = lines
        for line in lines:
            result = msgspec.json.decode(line, type=Result)
            self.results[result.seed] = result
        if torn:  # it was ended while it wrote: that story is told again
            path.write_bytes(b"\n".join([first, *lines, b""]))

    def add(self, result: Result) -> None:
        """Add a result."""
        self.results[result.seed] = result
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")

    def failed(self) -> list[Result]:
        """Return the results with a broken invariant."""
        return [one for _, one in sorted(self.results.items()) if one.checker]

    def taken(self) -> dict[str, Counter[str]]:
        """Return how often each transition was taken, by table."""
        found = {name: Counter[str]() for name in telling.TABLES}
        for result in self.results.values():
            for name, counts in result.taken.items():
                found[name].update(counts)
        return found

    def summary(self, wall_s: float) -> str:
        """Return the statistics of all results; ``wall_s`` is the time of this run."""
        told = telling.Told()
        for result in self.results.values():
            told.add(result.told)
        cpu_s = sum(result.cpu_s for result in self.results.values())
        failed = Counter(result.checker for result in self.failed())
        kinds = f": {dict(failed)}" if failed else ""
        spent = f"{cpu_s:.0f} s of CPU, {wall_s:.0f} s by the clock in this run"
        count = len(self.results)
        lines = [
            f"{count} stories, {told.steps} steps, {failed.total()} fail{kinds}; {spent}",
            f"{told}",
            *(self._of_size(size.name) for size in sizes.SIZES),
        ]
        for name, counts in self.taken().items():
            missing = telling.missing(name, counts)
            whole = len(telling.TABLES[name])
            lines.append(
                f"{name}: {whole - len(missing)} of {whole} transitions taken"
                + (f"; never: {', '.join(missing)}" if missing else "")
            )
        return "\n".join(lines)

    def _of_size(self, size: str) -> str:
        of = [result for result in self.results.values() if result.size == size]
        steps, cycles = (sum(getattr(one.told, name) for one in of) for name in ("steps", "cycles"))
        cpu_s = sum(one.cpu_s for one in of)
        return f"{size}: {len(of)} stories, {steps} steps, {cycles} cycles, {cpu_s:.0f} s of CPU"
