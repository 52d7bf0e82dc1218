"""Writes plain values as YAML that ``yaml_reader`` reads as the same values.

Other readers of YAML, which follow version 1.1, read the same too: what either takes for a number,
a truth value or a time is quoted.
"""

import io
import re
from typing import Any

import yaml

from reconciler.desired.documents import yaml_reader

#: Octal numbers of YAML 1.2, which Muster reads as text, and others as numbers.
_OCTAL = re.compile(r"0o[0-7]+")
_TEXT = "tag:yaml.org,2002:str"
#: Lines are not broken: a person reads one argument on one line.
_WIDTH = 2**20


class _Dumper(yaml.CSafeDumper):
    """A dumper that repeats what occurs twice, quotes what looks like another type, and writes
    several lines as a block.
    """

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: everything is written out, whatever it is."""
        del data
        return True


def _text_node(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    if not isinstance(yaml_reader.scalar(value), str) or _OCTAL.fullmatch(value):
        return dumper.represent_scalar(_TEXT, value, style="'")
    if "\n" in value.rstrip("\n"):
        return dumper.represent_scalar(_TEXT, value, style="|")
    return dumper.represent_scalar(_TEXT, value)


_Dumper.add_representer(str, _text_node)


def yaml_text(value: Any, *, is_ascii: bool = False) -> str:
    """Return a value of ``dict``, ``list``, ``str``, numbers, truth values and None as YAML.

    Args:
        value: what to write; mappings keep their order.
        is_ascii: escape everything else, within double quotes.
    """
    text = io.StringIO()
    yaml.dump(
        value, text, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=not is_ascii
    )
    return text.getvalue()
