"""The supervisor by itself."""

import subprocess
import sys
from pathlib import Path

from agents.supervisor import __main__, source_hash

SHORTER = """
import sys
sys.path.append(sys.argv[2])
from agents.supervisor import __main__ as supervisor
supervisor.ALONE_S = 0.1
sys.exit(supervisor.main())
"""
LOADED = """
import sys
sys.path.append(sys.argv[1])
from agents.supervisor import __main__
print(*sys.modules)
"""


def test_without_tasks_and_agents_it_leaves(tmp_path: Path) -> None:
    package = str(Path(source_hash.package_folder()).parent)
    command = [sys.executable, "-I", "-S", "-c", SHORTER, str(tmp_path / "root"), package]
    assert subprocess.run(command, timeout=120, check=False).returncode == 0
    assert not (tmp_path / "root" / "supervisor.sock").exists()


def test_a_second_one_leaves_the_first_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", __main__.__file__, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        try:
            while not (tmp_path / "supervisor.sock").exists():
                assert first.poll() is None
            second = subprocess.run(
                command, timeout=120, check=False, capture_output=True, text=True
            )
            assert second.returncode == 3
            assert "another supervisor" in second.stderr
            assert first.poll() is None
        finally:
            first.kill()


def test_it_needs_nothing_but_the_standard_library() -> None:
    """Whatever is installed beside it: isolated, without site-packages."""
    package = str(Path(source_hash.package_folder()).parent)
    command = [sys.executable, "-I", "-S", "-c", LOADED, package]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    own = {name for name in loaded if name.split(".")[0] == "agents"}
    files = source_hash.source_files()
    assert len(files) > 10
    names = {name.removesuffix(".py").removesuffix("/__init__") for name in files}
    assert own == {f"agents.{name}".replace("/", ".").removesuffix(".__init__") for name in names}
    roots = {name.split(".")[0] for name in loaded} - {"agents", "__main__"}
    assert not {name for name in roots if name not in sys.stdlib_module_names}
