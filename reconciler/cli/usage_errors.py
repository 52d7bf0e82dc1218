"""Errors of the command line parser, reworded with what to type instead.

An error of the parser comes in; a message goes out. Anything else keeps the parser's words.
"""

import re
import shlex

import typer

from reconciler.cli import command_hints
from reconciler.model.values import found_values

#: The parser's errors, which typer has brought along in different places: wrong usage, and all.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
ParserError: type[Exception] = typer.BadParameter.__mro__[2]

#: What the parser calls a type, and a person.
_TYPE_WORDS = {
    "float": "a number such as 2",
    "float range": "a number such as 2",
    "integer": "a whole number such as 2",
    "int": "a whole number such as 2",
    "int range": "a whole number such as 2",
    "boolean": "yes or no",
}
_MISSING = re.compile(r"Missing (argument|option) '(.*?)'.*?\.(?: Choose from: (.*))?")
_INVALID = re.compile(r"Invalid value for '(.*?)'(?: / '.*?')*(?: \(env var: '.*?'\))?: (.*)")
_NOT_OF_TYPE = re.compile(r"'(.*)' is not a valid ([a-z ]+)\.")
_NOT_A_CHOICE = re.compile(r"'(.*)' is not one of (.*)\.")
_NOT_IN_RANGE = re.compile(r"(\S+) is not in the range (?:(\S+)<=)?x(?:(>=|<=)(\S+))?\.")
_NO_COMMAND = re.compile(r"No such command '(.*?)'\.")
_NO_OPTION = "No such option"
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")


def describe(error: Exception) -> str:
    """Return the message about wrong usage."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = " ".join(message.split())
    context = getattr(error, "ctx", None)
    if found := _INVALID.match(message):
        return f"{found[1]}: {_describe_value(found[2])}"
    if context is None:
        return message
    if found := _MISSING.match(message):
        return _describe_missing(context, *found.groups())
    if found := _NO_COMMAND.match(message):
        return command_hints.describe_command(found[1], context.command.commands)
    word = getattr(error, "option_name", None)
    if isinstance(word, str) and message.startswith(_NO_OPTION):
        spellings = [spelled for parameter in context.command.params for spelled in parameter.opts]
        return command_hints.describe_option(word, spellings)
    if (found := _EXTRA.match(message)) and found[1].strip():
        positional = [
            value
            for parameter in context.command.params
            if parameter.param_type_name == "argument"
            and isinstance(value := context.params.get(parameter.name), str)
        ]
        first = positional[-1] if positional else ""
        extra = found[1].split()[0]
        return command_hints.describe_extra_word(context.command.name, first, extra)
    return message


def _describe_value(problem: str) -> str:
    """Return what is wrong with a value, as Muster says it of a field."""
    if (found := _NOT_OF_TYPE.match(problem)) and found[2] in _TYPE_WORDS:
        return f"found {found_values.quote(found[1])}, expected {_TYPE_WORDS[found[2]]}"
    if found := _NOT_A_CHOICE.match(problem):
        return f"found {found_values.quote(found[1])}, expected {_one_of(found[2])}"
    if found := _NOT_IN_RANGE.match(problem):
        least = found[2] or (found[4] if found[3] == ">=" else None)
        most = found[4] if found[3] == "<=" else None
        bounds = [f"{least} or more"] if least else []
        bounds += [f"{most} or less"] if most else []
        return f"found {found_values.quote(found[1])}, expected {' and '.join(bounds)}"
    return problem


def _describe_missing(context: typer.Context, what: str, name: str, choices: str | None) -> str:
    """Return which word a command line lacks, with the command to type if it is an option."""
    command = context.command_path.removeprefix("muster ")
    if choices:
        option = f"{name}: " if what == "option" else ""
        return f"{command} needs {option}{_one_of(choices)}"
    if what == "argument":
        return f"{command} needs {name}"
    words: list[str] = ["muster", *command.split()]
    value = '"why"'
    for parameter in context.command.params:
        if parameter.param_type_name == "argument":
            given = context.params.get(parameter.name or "") or ()
            words += map(str, given if isinstance(given, list | tuple) else [given])
        elif name in parameter.opts and name != "--reason":
            value = parameter.metavar or "VALUE"
    return f"{command} needs {name}: {shlex.join(words)} {name} {value}"


def _one_of(choices: str) -> str:
    """Return `a, b or c` from the parser's list of values."""
    *others, last = choices.replace("'", "").split(", ")
    return f"{', '.join(others)} or {last}" if others else last
