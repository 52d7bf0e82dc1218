"""Problems in the forms that other programs read: SARIF, and annotations of GitHub's workflows.

Problems come in with paths below the folder that was read; ``prefix`` is where that folder stands
in its repository, since those programs know paths from the top alone.
"""

import collections
import hashlib
import urllib.parse
from collections.abc import Iterable, Sequence
from typing import Any

from reconciler import __version__
from reconciler.model import desired

_LEVELS = {"error": "error", "warning": "warning"}
#: GitHub shows no more annotations of one step; further ones become one line.
ANNOTATIONS_MAX = 50


def place(problem: desired.Problem, prefix: str) -> str:
    """Return the path of a problem from the top of its repository."""
    return "/".join(part for part in (prefix.strip("/"), problem.path) if part)


def message(problem: desired.Problem) -> str:
    """Return what is wrong, without the place."""
    subject = ": ".join(part for part in (problem.object, problem.field) if part)
    text = f"{subject}: {problem.message}" if subject else problem.message
    if problem.found:
        text += f"; found {problem.found}"
    if problem.expected:
        text += f"; expected {problem.expected}"
    return text


def sarif(problems: Sequence[desired.Problem], prefix: str) -> dict[str, Any]:
    """Return a SARIF 2.1.0 log for code scanning.

    The fingerprint of a result leaves out its line, so that the finding stays the same when lines
    are inserted above it.
    """
    rules = sorted({problem.rule for problem in problems})
    seen: collections.Counter[str] = collections.Counter()
    results = []
    for problem in problems:
        mark = _mark(problem, prefix)
        seen[mark] += 1
        results.append(_result(problem, prefix, rules, f"{mark}:{seen[mark]}"))
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "muster",
                        "version": __version__,
                        "rules": [_rule(rule) for rule in rules],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _rule(rule: str) -> dict[str, Any]:
    """Return the description of a rule, which code scanning requires."""
    _, of_policy, policy = rule.partition("policy/")
    what = f"The policy {policy} of this repository" if of_policy else f"Muster's check {rule}"
    return {
        "id": rule,
        "shortDescription": {"text": what},
        "fullDescription": {"text": f"{what}, of what the documents of a cluster say."},
        "help": {"text": "`muster validate` prints the same, with what was found and expected."},
    }


def _mark(problem: desired.Problem, prefix: str) -> str:
    """Return the fingerprint of a finding, independent of its line."""
    identity = "\0".join((problem.rule, place(problem, prefix), problem.object, problem.field))
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _result(
    problem: desired.Problem, prefix: str, rules: list[str], fingerprint: str
) -> dict[str, Any]:
    uri = urllib.parse.quote(place(problem, prefix)) or "."
    location: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if problem.line:
        location["region"] = {"startLine": problem.line, "startColumn": max(1, problem.column)}
    return {
        "ruleId": problem.rule,
        "ruleIndex": rules.index(problem.rule),
        "level": _LEVELS[problem.severity],
        "message": {"text": message(problem)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
    }


def annotations(problems: Iterable[desired.Problem], prefix: str) -> list[str]:
    """Workflow commands, one a problem, errors first, no more than are shown."""
    ordered = sorted(problems, key=lambda one: one.severity)
    lines = [_annotation(problem, prefix) for problem in ordered[:ANNOTATIONS_MAX]]
    if len(ordered) > ANNOTATIONS_MAX:
        more = len(ordered) - ANNOTATIONS_MAX
        lines.append(f"::warning title=muster::{more} more problems are in the log of this step")
    return lines


def _annotation(problem: desired.Problem, prefix: str) -> str:
    parts = [f"file={_property(place(problem, prefix))}"]
    if problem.line:
        parts += [f"line={problem.line}", f"col={max(1, problem.column)}"]
    parts.append(f"title={_property(problem.rule)}")
    return f"::{problem.severity} {','.join(parts)}::{_data(message(problem))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
