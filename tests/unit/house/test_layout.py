"""The layout: small packages, and no mention of a module that does not exist."""

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

from reconciler import package_data
from tests.unit.house import measures

ROOT = package_data.checkout()
MODULES_MAX = 16
LINES_MAX = 500
#: Modules above the limit, with the reason. Entries may only go.
LONG_MODULES: dict[str, str] = {
    "reconciler/model/documents/cluster_spec.py": "the fields of one kind, as their page has them",
    "reconciler/model/documents/job_spec.py": "the fields of one kind, as their page has them",
    "reconciler/model/state/records.py": "records that hold one another",
    "reconciler/scheduling/backfill/reservation_calendar.py": "rebuilt with the scheduler",
    "reconciler/scheduling/cycle/scheduling_cycle.py": "rebuilt with the scheduler",
    "reconciler/scheduling/inputs/snapshots.py": "rebuilt with the scheduler",
    "reconciler/scheduling/placement/capacity.py": "rebuilt with the scheduler",
}
CLASS_LINES_MAX = 300
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 7
#: Classes and functions above the limits, as ``file:name``: those that are rebuilt with the
#: scheduler. Entries may only go.
LARGE = {
    f"reconciler/scheduling/{name}"
    for name in (
        "backfill/reservation_calendar.py:ReservationCalendar",
        "cycle/actions.py:Actions",
        "cycle/scheduling_cycle.py:SchedulingCycle",
        "cycle/skipped_attempts.py:UnschedulableCache",
        "estimates/start_estimates.py:estimates",
        "placement/capacity.py:Capacity",
        "quota/quota_ledger.py:QuotaLedger",
        "reasons/reason_explainer.py:ReasonExplainer",
    )
}
#: Loose at the root of the package: the version, and what several processes share.
ROOT_MODULES = {
    *(
        "__init__",
        "child_process",
        "interpreter",
        "lock_file",
        "log_format",
        "package_data",
        "safe_tar",
    ),
}
_DOTTED = re.compile(r"(?<![\w./-])(?:reconciler|agents)(?:\.[A-Za-z_][A-Za-z_0-9]*)+")
_PATH = re.compile(r"(?<![\w./-])(?:reconciler|agents|tests|bench|tools)/[\w/]+\.py\b")
_BACKTICKED = re.compile(r"``((?:[a-z_][a-z_0-9]*\.)+[A-Za-z_]\w*)(?:\(\))?``")
#: Fields of documents, files and calls of others whose names begin as a module of ours does.
NO_MODULES = {"retries.limit", "retention.audit"}
#: Pages that tell of the past, and data of other programs.
HISTORY = ("docs/decisions/", "CHANGELOG.md", "bench/results/", "tests/unit/house/")


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [
        name
        for name in listed.splitlines()
        if name.endswith((".py", ".md", ".toml", ".yaml", ".yml", ".service", "Makefile"))
        and not name.startswith(HISTORY)
        and (ROOT / name).is_file()
    ]


def _exists(name: str) -> bool:
    """Return True if a dotted name is a module, or something defined in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if module.is_file():
            return length == len(parts) or parts[length] in _defined(module)
    return False


def _defined(module: Path) -> set[str]:
    names = {"__main__", "__file__", "__version__", "egg", "dist"}
    for node in ast.walk(measures.tree(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
    return names


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(parameter.arg not in {"self", "cls"} for parameter in parameters)


def _commands(module: ast.Module) -> set[str]:
    """Return the functions that a module's ``register`` passes to ``app.command(...)`` or, for a
    group, to ``callback(...)``.

    It passes them by name, or by the variable of a loop over their names.
    """
    found: set[str] = set()
    for register in module.body:
        if not isinstance(register, ast.FunctionDef) or register.name != "register":
            continue
        for loop in ast.walk(register):
            if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Tuple):
                found |= {one.id for one in loop.iter.elts if isinstance(one, ast.Name)}
        for call in ast.walk(register):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Call)
                and isinstance(call.func.func, ast.Attribute)
                and call.func.func.attr in {"command", "callback"}
            ):
                found |= {one.id for one in call.args if isinstance(one, ast.Name)}
    return found


def _is_interface(node: ast.FunctionDef | ast.AsyncFunctionDef, commands: set[str]) -> bool:
    """Return True for a command or an HTTP handler: its parameters are what users see."""
    if node.name in commands:
        return True
    decorators = (ast.unparse(part).split("(")[0] for part in node.decorator_list)
    return any(name in {"get", "post", "put", "delete"} for name in decorators)


def _large(path: Path) -> set[str]:
    found, module = set(), measures.tree(path)
    is_cli = path.is_relative_to(ROOT / "reconciler/cli")
    commands = _commands(module) if is_cli else set()
    for node in ast.walk(module):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        if isinstance(node, ast.ClassDef):
            large = lines > CLASS_LINES_MAX
        elif _is_interface(node, commands):
            large = False
        else:
            large = lines > FUNCTION_LINES_MAX or _parameters(node) > PARAMETERS_MAX
        if large:
            found.add(f"{path.relative_to(ROOT)}:{node.name}")
    return found


def test_a_package_has_few_modules() -> None:
    sizes = measures.folder_sizes(ROOT)
    assert {name: size for name, size in sizes.items() if size > MODULES_MAX} == {}


def test_nothing_else_is_loose_at_the_root() -> None:
    assert {path.stem for path in (ROOT / "reconciler").glob("*.py")} == ROOT_MODULES


@pytest.mark.parametrize("package", measures.PACKAGES)
def test_modules_are_short(package: str) -> None:
    long = {
        str(path.relative_to(ROOT))
        for path in measures.modules(ROOT, (package,))
        if len(path.read_text(encoding="utf-8").splitlines()) > LINES_MAX
    }
    assert long == {name for name in LONG_MODULES if name.startswith(package)}


@pytest.mark.parametrize("package", measures.PACKAGES)
def test_classes_and_functions_are_small(package: str) -> None:
    found = set().union(*(_large(path) for path in measures.modules(ROOT, (package,))))
    assert found == {name for name in LARGE if name.startswith(package)}


def _modules_by_name() -> dict[str, list[Path]]:
    """Map every ending of a dotted module name to the modules that it may mean."""
    found: dict[str, list[Path]] = {}
    for path in measures.modules(ROOT):
        parts = measures.dotted(path, ROOT).split(".")
        for first in range(len(parts)):
            found.setdefault(".".join(parts[first:]), []).append(path)
    return found


def _is_stale(name: str, modules: dict[str, list[Path]]) -> bool:
    """Return True if a name begins with a module of ours that does not define the rest."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        meant = modules.get(".".join(parts[:length]))
        if meant:
            return length < len(parts) and not any(parts[length] in _members(one) for one in meant)
    return False


@functools.cache
def _members(module: Path) -> set[str]:
    names = _defined(module)
    for node in ast.walk(measures.tree(module)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


@pytest.mark.parametrize("package", measures.PACKAGES)
def test_names_in_backticks_exist(package: str) -> None:
    modules = _modules_by_name()
    stale = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in measures.modules(ROOT, (package,))
        if not path.is_relative_to(ROOT / "reconciler/scheduling")  # rebuilt soon
        for name in _BACKTICKED.findall(path.read_text(encoding="utf-8"))
        if name not in NO_MODULES and not name.endswith(".json") and _is_stale(name, modules)
    ]
    assert stale == []


@pytest.mark.parametrize("file", _tracked())
def test_what_is_named_exists(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    missing = {name for name in _DOTTED.findall(text) if not _exists(name)}
    missing |= {path for path in _PATH.findall(text) if not (ROOT / path).is_file()}
    assert missing == set()
