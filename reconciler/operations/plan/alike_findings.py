"""Findings that say the same of many objects, put together for a reader."""

import re
from collections.abc import Iterable

from reconciler.operations.plan.plan_types import FindingView

#: The most findings that are alike to show in full; further ones are counted.
EXAMPLES_MAX = 3


def groups(findings: Iterable[FindingView]) -> list[list[FindingView]]:
    """Return findings that are alike together, in the order in which the first of each came.

    Alike are those of one rule, field and severity that say the same but for the name of the object
    and for what is written there.
    """
    found: dict[tuple[object, ...], list[FindingView]] = {}
    for one in findings:
        key = (one.rule, one.severity, one.field, one.is_new, one.touched, _said(one), one.waiver)
        found.setdefault(key, []).append(one)
    return list(found.values())


def _said(one: FindingView) -> str:
    """Return the message without what is the object's own."""
    said = one.message
    for own in (one.object, one.object.rpartition("/")[2], one.found):
        if own:
            said = re.sub(rf"(?<![\w-]){re.escape(own)}(?![\w-])", "…", said)
    return said
