"""The `#SBATCH` lines of a script: what they ask for becomes options of the job, or is named.

Options of the command line win. No line is passed over without a word, and none that a job would go
wrong without.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reconciler.cli import terminal
from reconciler.cli.changes import job_fields, slurm_options, submit_options
from reconciler.model.observed import output_files
from reconciler.model.values import quantities
from reconciler.model.values.text_lines import split_lines

if TYPE_CHECKING:
    from reconciler.operations.changes import job_document

_LINE = re.compile(r"#SBATCH\s+(.*)")
#: A step of Slurm, or of MPI, as a command of its own.
_STEP = re.compile(r"^\s*(exec\s+|time\s+)?srun\s", re.MULTILINE)
_MPI_STEP = re.compile(r"^\s*(exec\s+|time\s+)?(mpirun|mpiexec)\s", re.MULTILINE)
#: The most lines that one message names.
TOLD_MAX = 8
_SHORT = MappingProxyType(
    {
        "J": "job-name",
        "p": "partition",
        "n": "ntasks",
        "N": "nodes",
        "c": "cpus-per-task",
        "t": "time",
        "a": "array",
        "D": "chdir",
        "H": "hold",
        "G": "gpus",
        "d": "dependency",
        "o": "output",
        "e": "error",
        "w": "nodelist",
        "x": "exclude",
        "b": "begin",
    }
)
_FLAGS = frozenset({"hold", "exclusive"})
#: Options without which a job does the same work on the same nodes: news, names, hints.
_IDLE = frozenset(
    {
        *(
            "mail-type",
            "mail-user",
            "comment",
            "nice",
            "account",
            "A",
            "qos",
            "q",
            "wckey",
            "export",
        ),
        *("requeue", "no-requeue", "parsable", "quiet", "Q", "verbose", "v", "kill-on-invalid-dep"),
        *("profile", "hint", "get-user-env", "no-kill", "k", "wait-all-nodes", "spread-job"),
        *("acctg-freq", "oversubscribe", "s", "overcommit", "O", "ntasks-per-core"),
    }
)
_NUMBER = re.compile(r"\d+")
_NUMBERS = re.compile(r"(?P<first>\d{1,9})(-(?P<last>\d{1,9}))?")
#: Lines that say how many tasks there are, and what they say.
_COUNTS = MappingProxyType({"nodes": "nodes", "ntasks": "tasks", "ntasks-per-node": "per_node"})


class SbatchOption(NamedTuple):
    """An option of a `#SBATCH` line, without dashes, and its value; None for none.

    A word that is no option is the value of one without a name.
    """

    name: str
    value: str | None

    @property
    def text(self) -> str:
        """The option as it may be written in a line."""
        if not self.name:
            return self.value or ""
        if len(self.name) == 1:
            return f"-{self.name}" + ("" if self.value is None else f" {self.value}")
        return f"--{self.name}" + ("" if self.value is None else f"={self.value}")


def options_in(script: str) -> list[SbatchOption]:
    """Return the options of the lines before the first command, as sbatch reads them."""
    found: list[SbatchOption] = []
    for line in split_lines(script):
        if line.strip() and not line.startswith("#"):
            break
        if match := _LINE.match(line):
            found += _options(match[1])
    return found


def _options(text: str) -> list[SbatchOption]:
    """Return the options of one line."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return [SbatchOption("", text.strip())]
    found: list[SbatchOption] = []
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, sign, value = _SHORT.get(word[1], word[1]), word[2:], word[2:].removeprefix("=")
        else:
            found.append(SbatchOption("", word))
            continue
        if not sign and name not in _FLAGS and words and not words[0].startswith("-"):
            value, sign = words.pop(0), "="
        found.append(SbatchOption(name, value if sign else None))
    return found


def fill(
    options: "job_document.JobOptions", *, named: bool, others: bool = False
) -> "job_document.JobOptions":
    """Return a job's options with what the lines of its script ask for; name the other lines.

    A job of such a script gets the variables of Slurm. Exit if a line asks for what the job would
    go wrong without, and no option does the same.

    Args:
        options: of the command line.
        named: True if that names the job.
        others: True if lines that nothing here understands are to change nothing.
    """
    if _STEP.search(options.script or ""):
        terminal.note(
            "srun: there are no steps here, the whole script runs once for each task: name the "
            "program without srun"
        )
    is_gang = options.most is not None or (options.count or 1) > 1
    if _MPI_STEP.search(options.script or "") and is_gang and options.framework != "mpi":
        terminal.note(
            "mpirun: the whole script runs once for each task, and each would start all processes: "
            "with --framework mpi the first task alone runs it, and reaches the others"
        )
    asked = options_in(options.script or "")
    if not asked:
        return options
    counts = job_fields.TaskCounts(options.count or options.most, options.tasks_per_node)
    found: dict[str, object] = {"framework": "slurm"}
    fields: dict[str, object] = {}
    left: list[str] = []
    wrong: list[str] = []
    for one in asked:
        value = one.value or ""
        if one.name in _TRANSLATED and (made := _TRANSLATED[one.name](value, counts)):
            found |= made
        elif one.name in _COUNTS:
            if others and not _is_followed(one, counts):
                left.append(one.text)
        elif one.name in _FIELDS and (value or one.name in _FLAGS) and _is_path(one):
            path, read = _FIELDS[one.name]
            fields[path] = read(value)
        else:
            (left if others or one.name in _IDLE else wrong).append(one.text)
    if wrong:
        terminal.fail(
            f"#SBATCH: no option does the same as {_listed(wrong)}, and the job would run without "
            "that. To fix: take these lines out and say it in another way (muster submit --help, "
            "muster schema job.spec), or submit with --ignore-sbatch",
            terminal.USAGE,
        )
    chosen = {name: value for name, value in found.items() if _is_open(options, name, named=named)}
    if left:
        _tell("no option does the same here, so these lines change nothing", left)
    if chosen or fields:
        taken = [one.text for one in asked if one.text not in left]
        if taken:
            _tell("taken from the script, where the command line says nothing else", taken)
    fields = {path: value for path, value in fields.items() if path not in options.fields}
    return msgspec.structs.replace(options, **chosen, fields={**fields, **options.fields})


def note_lines(text: str, place: str) -> None:
    """Say that lines of a script in a YAML file change nothing, if it has any."""
    lines = [line.strip() for line in split_lines(text) if _LINE.match(line.strip())]
    if lines:
        _tell(f"{place}: fields of the job say what it asks for; these lines change nothing", lines)


def _tell(what: str, lines: list[str]) -> None:
    terminal.note(f"#SBATCH: {what}: {_listed(lines)}")


def _listed(lines: list[str]) -> str:
    more = len(lines) - TOLD_MAX
    names = ", ".join(lines[:TOLD_MAX]) + (f" and {more} more" if more > 0 else "")
    return terminal.escape_control(names)


def _is_open(options: "job_document.JobOptions", name: str, *, named: bool) -> bool:
    """Return True if the command line leaves an option to the script."""
    if name in {"array", "indexes", "parallelism"}:
        return options.array is None and options.indexes is None
    if name == "name":
        return not named
    if name == "framework":
        return options.framework is None and options.least is None and options.most is None
    return getattr(options, name) in (None, {})


def _is_path(one: SbatchOption) -> bool:
    """Return False if an option is a path with words that mean something to Slurm alone."""
    is_file = one.name in {"output", "error"}
    return not (is_file and output_files.unknown_words(one.value or ""))


def with_lines(
    script: str, given: job_fields.GivenCounts, *, others: bool = False
) -> job_fields.GivenCounts:
    """Return the numbers of tasks of a command line, and those of a script's lines for what it
    leaves open. Exit if one of these is no number.

    ``others``: lines that can't be followed are to change nothing.
    """
    asked = {one.name: one for one in options_in(script) if one.name in _COUNTS}
    said: dict[str, int] = {}
    for name, field in _COUNTS.items():
        if name not in asked or getattr(given, field) is not None:
            continue
        number = _whole_number(asked[name].value or "")
        if number is not None:
            said[field] = number
        elif not others:
            terminal.fail(
                f"#SBATCH {asked[name].text}: expected a whole number from 1. To fix: say it on "
                "the command line, which wins (for a number of tasks that varies --min and "
                "--max), or submit with --ignore-sbatch",
                terminal.USAGE,
            )
    if given.most is not None:
        said = {field: number for field, number in said.items() if field == "per_node"}
    made = given._replace(**said)
    if "per_node" in said and made.nodes is not None and made.tasks is not None:
        made = made._replace(per_node=None)  # the most to sbatch, beside these two
    for field in ("nodes", "per_node", "tasks"):
        uneven = job_fields.shared_out(*made[:3])
        if not isinstance(uneven, str) or not said:
            break
        if not others:
            lines = _listed([one.text for one in asked.values()])
            terminal.fail(
                f"#SBATCH {lines}: {uneven}. To fix: say other numbers on the command line, which "
                "win, or submit with --ignore-sbatch",
                terminal.USAGE,
            )
        made = made._replace(**{field: getattr(given, field)})
    return made


def _whole_number(text: str) -> int | None:
    """Return a number from 1 on, also as a range of one; None for others."""
    found = _NUMBERS.fullmatch(text)
    if found is None or found["last"] not in {None, found["first"]}:
        return None
    return int(found["first"]) or None


def _is_followed(one: SbatchOption, counts: job_fields.TaskCounts) -> bool:
    """Return True if a job has the number of tasks, or of nodes, that a line says."""
    tasks, per_node = counts.tasks or 1, counts.per_node or 0
    nodes = tasks // per_node if per_node else (1 if tasks == 1 else 0)
    there = {"nodes": nodes, "ntasks": tasks, "ntasks-per-node": per_node}
    return _whole_number(one.value or "") == there[one.name]


def _tasks_of_node(counts: job_fields.TaskCounts) -> int:
    """Return how many tasks share what a node gets; 0 if nothing says it."""
    return counts.per_node or (1 if counts.tasks in {None, 1} else 0)


def _gpus_of_job(value: str, counts: job_fields.TaskCounts) -> dict[str, object]:
    """Return the GPUs of a task, where those of all tasks can be shared out."""
    return _gpus(value, job_fields.TaskCounts(counts.tasks, counts.tasks or 1))


def _gpus(value: str, counts: job_fields.TaskCounts) -> dict[str, object]:
    """Return the GPUs of a task, where its node's can be shared out."""
    count, tasks = slurm_options.gpu_count(value), _tasks_of_node(counts)
    if not count or not tasks or int(count) % tasks:
        return {}
    return {"gpus": float(int(count) // tasks)}


def _gpus_of_task(value: str, _: job_fields.TaskCounts) -> dict[str, object]:
    found = slurm_options.gpu_count(value)
    return {"gpus": float(found)} if found else {}


def _memory(value: str, counts: job_fields.TaskCounts) -> dict[str, object]:
    """Return the memory of a task: its share of its node's, where several are said to be there."""
    found, tasks = slurm_options.memory_amount(value), _tasks_of_node(counts)
    if not found or not tasks:
        return {}
    if tasks > 1:
        kibibytes = max(quantities.parse_memory(found) // tasks // 1024, 1)
        found = f"{kibibytes}Ki" if kibibytes % 1024 else f"{kibibytes // 1024}Mi"
    return {"memory": found}


def _time(value: str, _: job_fields.TaskCounts) -> dict[str, object]:
    """Return the time limit; a bare number is minutes to sbatch."""
    return {"time_limit": f"{value}m" if _NUMBER.fullmatch(value) else value} if value else {}


def _array(value: str, _: job_fields.TaskCounts) -> dict[str, object]:
    """Return the elements of an array; a number alone is an index to sbatch."""
    problems: list[str] = []
    indexes, percent, limit = value.partition("%")
    if _NUMBER.fullmatch(indexes):
        indexes = f"{indexes}-{indexes}"
    found = submit_options.parse_array(f"{indexes}{percent}{limit}", problems)
    if problems:
        return {}
    return {"array": found.number, "indexes": found.indexes, "parallelism": found.at_once}


def _name(value: str, _: job_fields.TaskCounts) -> dict[str, object]:
    """Return the job's name, if it can be one here."""
    return {"name": value} if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value) else {}


def _plain(name: str) -> "_Translation":
    return lambda value, _: {name: value} if value else {}


_Translation = Callable[[str, job_fields.TaskCounts], dict[str, object]]
_TRANSLATED: Mapping[str, _Translation] = MappingProxyType(
    {
        "job-name": _name,
        "partition": _plain("queue"),
        "cpus-per-task": _plain("cpus"),
        "gpus-per-task": _gpus_of_task,
        "gres": _gpus,
        "gpus": _gpus_of_job,
        "gpus-per-node": _gpus,
        "mem": _memory,
        "time": _time,
        "array": _array,
        "signal": lambda value, _: {"checkpoint": submit_options.checkpoint(value)},
    }
)
_FIELDS: Mapping[str, tuple[str, Callable[[str], object]]] = MappingProxyType(
    {
        "chdir": ("workingDirectory", str),
        "begin": ("notBefore", lambda text: job_fields.moment("--begin", text)),
        "deadline": ("deadline", lambda text: job_fields.moment("--deadline", text)),
        "hold": ("suspend", lambda _: True),
        "exclusive": ("exclusive", lambda _: True),
        "output": ("output", str),
        "error": ("error", str),
        "nodelist": ("hosts", str),
        "exclude": ("excludeHosts", str),
        "open-mode": (
            "openMode",
            lambda mode: {"a": "append", "t": "truncate"}.get(mode[:1], mode),
        ),
    }
)
