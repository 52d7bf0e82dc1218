"""Names of the values of arguments and options in help texts, such as `--server URL`.

The parser would write the type instead (`<str>`), which says nothing about what to type.
"""

from typing import Any

#: Names of the values of options, for all commands that have them.
_OPTIONS: dict[str, str] = {
    "--accept-revision": "COMMIT",
    "--array": "ELEMENTS",
    "--base": "REVISION",
    "--branch": "BRANCH",
    "--by": "COLUMNS",
    "--checkpoint-every": "DURATION",
    "--clone": "FOLDER",
    "--cpus": "CPUS",
    "--cycle-every": "DURATION",
    "--element": "INDEX",
    "--env": "NAME=VALUE",
    "--every": "SECONDS",
    "--export": "NAMES",
    "--file": "FILE",
    "--folder": "FOLDER",
    "--for": "DURATION",
    "--form": "FORM",
    "--framework": "FRAMEWORK",
    "--from": "TIME",
    "--gpus": "GPUS",
    "--head": "REVISION",
    "--horizon": "DURATION",
    "--html": "FILE",
    "--job": "JOB",
    "--jobs": "COUNT",
    "--kind": "KIND",
    "--limit": "COUNT",
    "--listen": "HOST:PORT",
    "--load": "LOAD",
    "--max": "COUNT",
    "--memory": "AMOUNT",
    "--metric": "METRIC",
    "--min": "COUNT",
    "--module": "MODULE",
    "--name": "NAME",
    "--node": "NODE",
    "--nodes": "COUNT",
    "--notify-secrets": "FOLDER",
    "--older-than": "DURATION",
    "--over-estimate": "SIGMA",
    "--owner": "EMAIL",
    "--label": "LABEL",
    "--sort": "ORDER",
    "--path": "FOLDER",
    "--per-node": "COUNT",
    "--png": "FILE",
    "--policy": "POLICY",
    "--pool": "POOL",
    "--prices": "FILE",
    "--out": "FOLDER",
    "--priority-class": "CLASS",
    "--provisioners": "FOLDER",
    "--queue": "QUEUE",
    "--reason": "TEXT",
    "--repo": "REPOSITORY",
    "--run": "NUMBER",
    "--scheduling": "KEY=VALUE",
    "--secrets": "FOLDER",
    "--seed": "NUMBER",
    "--server": "URL",
    "--signal": "SIGNAL",
    "--since": "TIME",
    "--speed-up": "FACTOR",
    "--state": "STATE",
    "--store": "URL",
    "--tail": "LINES",
    "--task": "TASK",
    "--tasks": "COUNT",
    "--time": "DURATION",
    "--timeout": "DURATION",
    "--to": "TIME",
    "--token-file": "FILE",
    "--trust": "NODES",
    "--try": "NUMBER",
    "--until": "TIME",
}
#: Names of arguments, by command and parameter.
_ARGUMENTS: dict[tuple[str, str], str] = {
    ("adopt", "names"): "JOB...",
    ("approve", "digest"): "DIGEST",
    ("backup", "target"): "FOLDER",
    ("can", "email"): "EMAIL",
    ("can", "verb"): "VERB",
    ("cancel", "names"): "JOB...",
    ("clear", "name"): "NAME",
    ("drain", "nodes"): "NODE...",
    ("explain", "name"): "JOB",
    ("hold", "names"): "JOB...",
    ("init", "folder"): "FOLDER",
    ("job", "name"): "JOB",
    ("jobs", "names"): "JOB...",
    ("login", "url"): "URL",
    ("logs", "name"): "JOB",
    ("node", "name"): "NODE",
    ("plan", "revision"): "REVISION",
    ("plot", "name"): "JOB",
    ("quotas", "names"): "QUOTA...",
    ("release", "names"): "JOB...",
    ("rerun", "names"): "JOB...",
    ("restore", "source"): "FOLDER",
    ("rollback", "revision"): "REVISION",
    ("run", "command"): "-- COMMAND...",
    ("scenario", "paths"): "FILE...",
    ("simulate", "source"): "SOURCE",
    ("snapshot", "file"): "FILE",
    ("submit", "arguments"): "FILE... | -- COMMAND...",
    ("undrain", "nodes"): "NODE...",
    ("validate", "folder"): "FOLDER",
    ("wait", "names"): "JOB...",
}


def apply(command: Any) -> None:
    """Set the names in the help of a command and of all commands below it."""
    for below in getattr(command, "commands", {}).values():
        apply(below)
    for parameter in command.params:
        if parameter.metavar is not None:
            continue
        if parameter.param_type_name == "argument":
            parameter.metavar = _ARGUMENTS.get((command.name, parameter.name))
        elif not parameter.is_flag:
            parameter.metavar = _OPTIONS.get(parameter.opts[0])
