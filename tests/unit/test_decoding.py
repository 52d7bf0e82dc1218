"""What threads decode into is known to msgspec before there are threads."""

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from reconciler import package_data

ROOT = package_data.checkout()
#: Where there is one thread when anything is decoded: commands, and the core, which is pure.
ONE_THREAD = ("reconciler/cli", "reconciler/simulation", "reconciler/model/metrics/metric_table.py")
ALLOWED = {"reconciler/model/protocol/decoders.py"}

MANY_AT_ONCE = """\
import sys, threading
from reconciler import package_data
from reconciler.desired.documents import document_reader

sys.setswitchinterval(1e-6)
text = b"apiVersion: muster/v1\\nkind: Job\\nmetadata: {name: a}\\nspec: {command: [echo]}\\n"
gate = threading.Barrier(16)
read = []

def go():
    gate.wait()
    read.append(document_reader.read(text))

threads = [threading.Thread(target=go) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(read) == 16 and all(file.documents[0].part is not None for file in read)
"""


def late(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls in functions that name a type to msgspec there and then."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func)
            typed = any(keyword.arg == "type" for keyword in call.keywords)
            ours = name.startswith("msgspec.")
            decodes = ours and name.endswith(".decode") and typed
            made = ours and name.endswith(".Decoder") and bool(call.args)
            if name == "msgspec.convert" or decodes or made:
                yield call


def found(path: pathlib.Path) -> list[str]:
    """``file:line`` of each."""
    name = str(path.relative_to(ROOT))
    if name in ALLOWED or name.startswith(ONE_THREAD):
        return []
    return [f"{name}:{call.lineno}" for call in late(ast.parse(path.read_text()))]


def test_nothing_learns_a_type_while_threads_run() -> None:
    files = [path for top in ("reconciler", "agents") for path in (ROOT / top).rglob("*.py")]
    tests = (ROOT / "tests").rglob("*.py")  # their servers have threads, too
    files += [path for path in tests if "import threading" in path.read_text()]
    assert [one for path in files for one in found(path)] == []


@pytest.mark.parametrize(
    "body",
    [
        "msgspec.json.decode(b, type=Kind)",
        "msgspec.msgpack.decode(b, type=Kind)",
        "msgspec.convert(b, Kind)",
        "msgspec.json.Decoder(Kind)",
    ],
)
def test_it_is_seen(body: str) -> None:
    assert list(late(ast.parse(f"def f(b):\n    return {body}")))
    assert not list(late(ast.parse(f"x = {body}")))


def test_many_threads_may_read_their_first_document_at_once() -> None:
    """Two of twelve such processes died of a segmentation fault when types were learnt late."""
    for _ in range(8):
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", MANY_AT_ONCE],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
