"""Errors of the command line parser, reworded with what to type instead.

An error of the parser comes in; a message goes out. Anything else keeps the parser's words.
"""

import re

import typer

from reconciler.cli import command_hints

#: The parser's errors, which typer has brought along in different places: wrong usage, and all.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
ParserError: type[Exception] = typer.BadParameter.__mro__[2]

#: What the parser calls a type, and a person.
_TYPE_WORDS = {
    "float": "a number",
    "float range": "a number",
    "integer": "a whole number",
    "int": "a whole number",
    "int range": "a whole number",
}
_NO_COMMAND = re.compile(r"No such command '(.*?)'\.")
_NO_OPTION = "No such option"
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")


def describe(error: Exception) -> str:
    """Return the message about wrong usage."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = " ".join(message.split())
    for type_name, words in _TYPE_WORDS.items():
        message = message.replace(f"is not a valid {type_name}.", f"is not {words}.")
    context = getattr(error, "ctx", None)
    if context is None:
        return message
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
