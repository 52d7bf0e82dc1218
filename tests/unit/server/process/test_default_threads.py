"""What people ask for is looked up in fair turns, and not in the threads that agents need."""

import ast

from reconciler import package_data

ROOT = package_data.checkout()
SERVER = "reconciler/server"
#: Calls that take a thread out of turn.
OUT_OF_TURN = {"to_thread", "run_in_executor"}
#: Modules that may, and why. Whatever else a person asks for goes by ``sync_to_thread``, in whose
#: threads nobody waits for somebody else's questions. Entries may only go.
MAY = {
    "agent_sync.py": "agents, who take no turns",
    "background/audit_watch.py": "asked for by nobody",
    "background/prune_timer.py": "asked for by nobody",
    "changes/queued_submissions.py": "asked for by nobody: what waits is tried again",
    "interactive/session_desk.py": "asked for by nobody: rights of sessions are judged again",
    "logs/log_output.py": "a stream's looks for the next try of one task, seconds apart",
    "logs/standing_rights.py": "the look at the right to read on, now and then",
    "nodes/node_metrics_pages.py": "pages for all who scrape, made once",
    "nodes/undeclared_nodes.py": "agents, who take no turns",
    "process/batching.py": "one call at a time, for all who ask meanwhile",
    "server_store.py": "opens the store",
}


def _names(module: ast.Module) -> set[str]:
    attributes = {one.attr for one in ast.walk(module) if isinstance(one, ast.Attribute)}
    imports = [one for one in ast.walk(module) if isinstance(one, ast.ImportFrom)]
    return attributes | {alias.name for one in imports for alias in one.names}


def test_only_what_nobody_asks_much_of_takes_a_thread_out_of_turn() -> None:
    root = ROOT / SERVER
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if _names(ast.parse(path.read_bytes())) & OUT_OF_TURN
    }
    assert sorted(found - MAY.keys()) == [], "use litestar.concurrency.sync_to_thread"
    assert sorted(MAY.keys() - found) == [], "take the entry out"
