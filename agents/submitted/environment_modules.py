"""Environment modules of a node: the variables that ``module load`` sets, for a task.

They are loaded as the job's user by a login shell, which is how sites set them up (Environment
Modules and Lmod alike). What can't be loaded is told with the site's own words.
"""

import re
from typing import NamedTuple

from agents.isolation import command_cgroups, user_commands
from reconciler import child_process

#: How long loading may take.
TIMEOUT_S = 60.0
OUTPUT_BYTES_MAX = 2**20
#: The most characters of what a shell says.
SAID_CHARACTERS_MAX = 600
_NO_MODULE = 65
#: The profile decides what ``module`` is; its own output must not be taken for the environment.
_SCRIPT = f"""\
type module >/dev/null 2>&1 || exit {_NO_MODULE}
module load "$@" >&2 || exit 1
printf '\\0%s\\0' muster-environment-follows
exec /usr/bin/env -0
"""
_MARK = b"\0muster-environment-follows\0"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables of the shell itself.
_SHELLS_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "BASH_ENV", "ENV", "TMPDIR"})
#: What Lmod writes, with status 0, about what it could not load.
_LMOD_ERROR = "Lmod has detected the following error"
_MODULES_ERROR = re.compile(r"^(ERROR:|Unable to locate a modulefile)", re.MULTILINE)


class ModulesError(Exception):
    """Modules that can't be loaded on this node, with the reason for people."""


class ModuleRequest(NamedTuple):
    """The modules of a task, and who loads them.

    Attributes:
        environment: of the login shell, before its profile.
    """

    modules: tuple[str, ...]
    user: child_process.ChildUser | None
    environment: dict[str, str]


def load(request: ModuleRequest, commands: user_commands.UserCommands) -> dict[str, str]:
    """Return the variables that differ by a task's modules.

    Raises:
        ModulesError: there are none such here, or they can't be loaded.
        CommandRefusedError: this node can't hold the shell within its limits.
    """
    shown = " ".join(request.modules)
    program = child_process.ChildProgram(
        ["/bin/bash", "--login", "-c", _SCRIPT, "muster", *request.modules],
        environment=request.environment,
        folder="/",
        user=request.user,
        stdout=child_process.ChildOutput.READ,
        stderr=child_process.ChildOutput.READ,
    )
    limits = child_process.ChildLimits(
        TIMEOUT_S, OUTPUT_BYTES_MAX, leftovers=child_process.Leftovers.KILL
    )
    try:
        result = commands.run(program, limits)
    except command_cgroups.CommandRefusedError:
        raise  # by the node, whatever is to be loaded
    except OSError as problem:
        raise ModulesError(f"module load {shown}: no login shell here: {problem}") from None
    if result.status == _NO_MODULE:
        raise ModulesError(
            f"module load {shown}: this node has no `module` command in a login shell. To fix: "
            "install Environment Modules or Lmod, or limit the job to pools that have it"
        )
    said = result.stderr.decode(errors="backslashreplace").strip()
    _, mark, rest = result.stdout.rpartition(_MARK)
    if result.status != 0 or not mark or _LMOD_ERROR in said or _MODULES_ERROR.search(said):
        how = said[-SAID_CHARACTERS_MAX:] or result.end.value
        raise ModulesError(
            f"module load {shown}: {' '.join(how.split())}. To fix: see what nodes have with "
            "`muster run -- bash -lc 'module avail'`, or limit the job to a pool that has these"
        )
    return _changed(rest, request.environment)


def _changed(text: bytes, before: dict[str, str]) -> dict[str, str]:
    """Return the variables of ``env -0`` that differ from those before."""
    found: dict[str, str] = {}
    for one in text.split(b"\0"):
        name, _, value = one.decode(errors="surrogateescape").partition("=")
        if _NAME.fullmatch(name) and name not in _SHELLS_OWN and before.get(name) != value:
            found[name] = value
    return found
