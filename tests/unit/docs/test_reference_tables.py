"""The pages of reasons, events and exit codes list what the code has."""

import argparse
import ast
import re

from reconciler.model.state import events, instance_records, pending_reasons, states
from reconciler.server.api import (
    attempt_list,
    audit,
    explanations,
    health,
    identity,
    loop_requests,
    plans,
    queries,
    reports,
    reservations,
)
from reconciler.server.changes import change_routes, overrides
from reconciler.server.code import code_routes
from reconciler.server.interactive import session_routes
from reconciler.server.logs import log_routes
from reconciler.server.personal import notification_routes
from tests.unit.docs import pages

REFERENCE = pages.ROOT / "docs" / "reference"
#: Calls whose string argument is the kind of an event.
CALLS = {"event", "_event"}
KIND = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+")


def page(name: str) -> str:
    """Return the text of a page of the reference."""
    return (REFERENCE / name).read_text(encoding="utf-8")


def kinds_in(tree: ast.Module) -> set[str]:
    """Return kinds of events that a module writes down: as an argument, or returned in a pair."""
    found: set[str] = set()
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            is_event = called.rpartition(".")[2] in CALLS or called.endswith("events.add")
            values = node.args[:2] if is_event else []
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            values = node.value.elts[:1]
        found |= {
            value.value
            for value in values
            if isinstance(value, ast.Constant)
            and isinstance(value.value, str)
            and KIND.fullmatch(value.value)
        }
    return found


def kinds_of_events() -> set[str]:
    """Return every kind of event that a cycle can write."""
    found = set(events.SENTENCES)
    for path in (pages.ROOT / "reconciler" / "core").rglob("*.py"):
        found |= kinds_in(ast.parse(path.read_text(encoding="utf-8")))
    found |= {f"Job{state.value}" for state in states.JobState}
    found |= {f"Node{state.value}" for state in states.NodeState}
    return found | {f"Instance{state.value}" for state in instance_records.InstanceState}


def test_every_reason_has_a_section_in_order_of_precedence() -> None:
    codes = [code.value for code in pending_reasons.ReasonCode]
    text = page("reasons.md")
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == codes
    assert re.findall(r"^\| \[(\w+)\]", text, re.MULTILINE) == codes
    for section in text.split("\n## ")[1:]:
        lines = re.findall(r"^- (Message|To fix): ", section, re.MULTILINE)
        assert lines == ["Message", "To fix"], section.split("\n")[0]


def test_no_hidden_option_is_listed() -> None:
    assert argparse.SUPPRESS not in page("cli.md")


def test_every_event_is_in_the_table() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", page("events.md"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == kinds_of_events()


def test_every_request_is_in_the_table_of_the_api() -> None:
    handlers = [
        handler
        for module in (
            *(health, queries, loop_requests, explanations, plans, change_routes),
            *(audit, overrides, reports, reservations, attempt_list, log_routes, identity),
            session_routes,
            notification_routes,
            code_routes,
        )
        for handler in module.HANDLERS
        if handler.include_in_schema is not False
    ]
    served = {
        f"{method} {re.sub(r':[a-z]+}', '}', path)}"
        for handler in handlers
        for path in handler.paths
        for method in handler.http_methods
        if method not in {"HEAD", "OPTIONS"}
    }
    assert set(re.findall(r"^\| `(\w+ /[^`]*)` \|", page("api.md"), re.MULTILINE)) == served
