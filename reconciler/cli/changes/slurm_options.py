"""Names that Slurm has for options of `submit` and `run`, where they mean the same."""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from reconciler.cli import terminal

_GPUS = re.compile(r"(gpu:)?(?P<count>\d+)")
_MEMORY = re.compile(r"(?P<amount>\d*[1-9]\d*)(?P<unit>[KMGT]?)B?", re.IGNORECASE)
_CONDITIONS = frozenset({"afterok", "afterany", "afternotok"})
#: With more tasks than nodes, amounts of a node are not those of a task.
_TASKS = re.compile(r"(--n?tasks|--max|--n?tasks-per-node)(=.*)?|-n.*")


class _Alias(NamedTuple):
    """An option here, and how to write a value of Slurm's for it, or several, each with the option;
    None: it has no such value.
    """

    option: str
    value: Callable[[str], str | tuple[str, ...] | None] = str
    of_node: bool = False


def gpu_count(value: str) -> str | None:
    """Return a number of GPUs, as in `gpu:2`; None if a model is named, which is none here."""
    found = _GPUS.fullmatch(value)
    return found["count"] if found else None


def memory_amount(value: str) -> str | None:
    """Return an amount in units of 1024, as Slurm counts; a bare number is mebibytes.

    None if it is none, or 0, which is all memory of a node to Slurm.
    """
    found = _MEMORY.fullmatch(value)
    return f"{found['amount']}{(found['unit'] or 'M').upper()}i" if found else None


def dependencies(value: str) -> tuple[str, ...] | None:
    """Return the jobs of `afterok:a:b,afterany:c`, each with its condition; None if any can't be
    said here: one of several (`?`), `singleton`, or the start of another job.
    """
    found: list[str] = []
    for part in value.split(","):
        condition, _, jobs = part.partition(":")
        if condition.lower() not in _CONDITIONS or not jobs or not all(jobs.split(":")):
            return None
        found += [f"{condition.lower()}:{job}" for job in jobs.split(":")]
    return None if "?" in value or "+" in value else tuple(found)


_ALIASES: Mapping[str, _Alias] = MappingProxyType(
    {
        "--partition": _Alias("--queue"),
        "-p": _Alias("--queue"),
        "--job-name": _Alias("--name"),
        "--ntasks": _Alias("--tasks"),
        "--ntasks-per-node": _Alias("--tasks-per-node"),
        "--cpus-per-task": _Alias("--cpus"),
        "--gpus-per-task": _Alias("--gpus", gpu_count),
        "--gpus-per-node": _Alias("--gpus", gpu_count, of_node=True),
        "--gres": _Alias("--gpus", gpu_count, of_node=True),
        "--mem": _Alias("--memory", memory_amount, of_node=True),
        "--output": _Alias("--output-file"),
        "-o": _Alias("--output-file"),
        "--error": _Alias("--error-file"),
        "--nodelist": _Alias("--node"),
        "-w": _Alias("--node"),
        "-x": _Alias("--exclude"),
        "-D": _Alias("--chdir"),
        "-b": _Alias("--begin"),
        "--dependency": _Alias("--depends", dependencies),
        "-d": _Alias("--depends", dependencies),
    }
)


def _options(words: list[str], flags: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the options before a command, each with the word behind it that is its value."""
    left = iter(words)
    for word in left:
        if not word.startswith("-") or word in {"-", "--"}:
            return
        takes_next = "=" not in word and word not in flags
        takes_next = takes_next and (word.startswith("--") or len(word) == 2)
        yield word, list(itertools.islice(left, 1)) if takes_next else []


def translated(words: list[str], options: Iterable[Any]) -> list[str]:
    """Return the words of a command with the options here, and say which were meant.

    What has no equal stays as it is, and the parser refuses it with a hint.

    Args:
        words: of the command line, behind the command's name.
        options: of the command. They tell which take a value.
    """
    known = list(options)
    flags = {name for one in known if getattr(one, "is_flag", False) for name in one.opts}
    there = {name for one in known for name in one.opts}
    options_given = list(_options(words, flags))
    has_tasks = any(_TASKS.fullmatch(word) for word, _ in options_given)
    found, told = list[str](), list[str]()
    for word, following in options_given:
        name, sign, value = word.partition("=")
        alias = _ALIASES.get(name)
        if alias is not None and alias.option not in there:
            alias = None
        given = value if sign else "".join(following)
        made = alias.value(given) if alias and not (alias.of_node and has_tasks) else None
        if alias is None or not made:
            found += [word, *following]
            continue
        for one in (made,) if isinstance(made, str) else made:
            found += [alias.option, one]
        told.append(f"{name} is {alias.option} here")
    if told:
        terminal.note("; ".join(dict.fromkeys(told)))
    read = sum(1 + len(following) for _, following in options_given)
    return [*found, *words[read:]]
