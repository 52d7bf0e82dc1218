"""Code travels with a job: to a node that has nothing of its folder, as it was when submitted."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds

PROGRAM = str(Path(sys.executable).with_name("muster"))
QUEUES = """\
apiVersion: muster/v1
kind: Queue
metadata: {name: default}
spec: {}
"""
#: A program that shows what it starts with.
TRAIN = "import os, helper\nprint(os.path.relpath(os.getcwd(), os.environ['MUSTER_CODE_DIR']))\n"


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("code"), nodes=2) as made:
        made.commit({"queues.yaml": QUEUES})
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's folder, with a program of two files."""
    folder = tmp_path / "project"
    (folder / "part").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text("print('first')\n")
    (folder / "a b").mkdir()
    (folder / "a b" / "c").write_text("of a folder with a space\n")
    (folder / "part" / "run.sh").write_text("#!/bin/sh\ncat ../helper.py\n")
    (folder / "part" / "run.sh").chmod(0o755)
    return folder


def muster(
    bed: beds.Bed, folder: Path, *words: str, token_file: str = ""
) -> subprocess.CompletedProcess[str]:
    token = {"MUSTER_TOKEN_FILE": token_file} if token_file else {}
    return subprocess.run(
        [PROGRAM, *words],
        cwd=folder,
        env={**bed.environment, **token, "PWD": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def commit(bed: beds.Bed, files: dict[str, str]) -> None:
    """Commit files on top of what the controller has committed."""
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
    bed.commit(dict(files))


def packs(bed: beds.Bed) -> list[str]:
    """Return the names of the packs that the controller keeps."""
    return sorted(path.name for path in bed.cluster.state.glob("code-*.tar"))


def cached(bed: beds.Bed) -> list[Path]:
    """Return the packs that nodes keep."""
    return sorted(bed.folder.glob("**/code/packs/*"))


def test_each_submission_runs_what_the_folder_held_then(bed: beds.Bed, project: Path) -> None:
    words = ("run", "--cpus", "1", "--code", ".", "--", "python3", "train.py")
    first = muster(bed, project, *words)
    assert (first.returncode, first.stdout) == (0, "first\n.\n"), first.stderr
    assert "packed 4 files of ." in first.stderr
    (project / "helper.py").write_text("print('second')\n")
    second = muster(bed, project, *words)
    assert (second.returncode, second.stdout) == (0, "second\n.\n"), second.stderr
    assert len(packs(bed)) == 2
    (project / "helper.py").write_text("print('first')\n")
    third = muster(bed, project, *words)
    assert (third.returncode, third.stdout) == (0, "first\n.\n"), third.stderr
    assert len(packs(bed)) == 2, "the same content is not kept twice"


def test_a_folder_that_is_gone_is_no_matter(bed: beds.Bed, project: Path) -> None:
    """The tasks of a gang have it on each node, and the controller keeps it over a restart."""
    done = muster(
        bed, project, "submit", "--name", "gone", "--hold", "--code", str(project), "--tasks", "2",
        "--cpus", "3", "--", "python3", "train.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    project.rename(project.with_name("elsewhere"))
    bed.cluster.kill_controller()
    bed.cluster.start_controller()
    bed.cluster.wait_ready()
    assert muster(bed, project.parent, "release", "gone").returncode == 0
    job = bed.until_state("gone", "Succeeded", "Failed")
    assert job["state"] == "Succeeded", job["message"]
    assert len({one["node"] for one in job["attempts"]}) == 2
    assert bed.output("gone", task="main-1") == "first\n.\n"
    shown = muster(bed, project.parent, "job", "gone")
    assert "Code      sha256:" in shown.stdout


def test_chdir_names_a_folder_in_the_code(bed: beds.Bed, project: Path) -> None:
    words = ("run", "--cpus", "1", "--code", ".", "--chdir")
    inner = muster(bed, project, *words, "part", "--", "./run.sh")
    assert (inner.returncode, inner.stdout) == (0, "print('first')\n"), inner.stderr
    spaced = muster(bed, project, *words, "./a b/", "--", "cat", "c")
    assert spaced.stdout == "of a folder with a space\n", spaced.stderr
    outside = muster(bed, project, *words, "../x", "--", "true")
    assert (outside.returncode, "--chdir" in outside.stderr) == (125, True), outside.stderr
    outer = muster(bed, project, *words, "/", "--", "sh", "-c", 'pwd; ls "$MUSTER_CODE_DIR"')
    assert outer.stdout == "/\na b\nhelper.py\npart\ntrain.py\n", outer.stderr
    none = muster(bed, project, *words, "nowhere", "--", "true")
    assert none.returncode == 125
    assert "the code has no folder nowhere" in none.stderr
    assert "keeps no" not in none.stdout + none.stderr, "what never started has written nothing"
    assert "what it left" not in inner.stderr, "what came along is not left by the task"


def test_elements_of_an_array_and_scripts_have_it_too(bed: beds.Bed, project: Path) -> None:
    (project / "go.sh").write_text('#!/bin/sh\ncat helper.py "$1"; echo "$MUSTER_ARRAY_INDEX"\n')
    done = muster(
        bed, project, "submit", "--name", "many", "--code", ".", "--array", "2", "./go.sh",
        "part/run.sh",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = bed.until_state("many", "Succeeded", "Failed")
    assert job["state"] == "Succeeded", job["message"]
    expected = "print('first')\n#!/bin/sh\ncat ../helper.py\n1\n"
    assert bed.output("many", element="1") == expected


def test_a_dry_run_sends_nothing(bed: beds.Bed, project: Path) -> None:
    (project / "helper.py").write_text("print('never sent')\n")
    before = packs(bed)
    done = muster(
        bed, project, "submit", "--name", "unsent", "--code", ".", "--dry-run", "--", "true"
    )
    assert done.returncode == 0, done.stderr
    assert "digest: sha256:" in done.stdout
    assert packs(bed) == before
    commit(bed, {"unsent.yaml": done.stdout})
    job = bed.until_state("unsent", "Failed")
    assert "is not on the controller" in job["message"]
    assert "submit the job again with --code" in job["message"]


def test_a_pack_that_was_changed_is_not_used(bed: beds.Bed, project: Path) -> None:
    """On the controller nodes find it out; on a node it is fetched again."""
    (project / "helper.py").write_text("print('changed on disk')\n")
    words = ("run", "--cpus", "1", "--code", ".", "--", "python3", "train.py")
    before = {path.name for path in cached(bed)}
    kept = set(packs(bed))
    assert muster(bed, project, *words).stdout == "changed on disk\n.\n"
    (mine,) = [path for path in cached(bed) if path.name not in before]
    mine.write_bytes(b"something else")
    assert muster(bed, project, *words).stdout == "changed on disk\n.\n"
    (pack,) = set(packs(bed)) - kept
    (bed.cluster.state / pack).write_bytes(b"something else")
    for path in cached(bed):
        path.unlink()
    failed = muster(bed, project, *words)
    assert failed.returncode == 125
    assert "it was changed on the controller's disk or on its way" in failed.stderr


def test_folders_of_code_do_not_stay(bed: beds.Bed) -> None:
    assert list(bed.folder.glob("**/code/ready/*")) == []
    assert list(bed.folder.glob("**/code-*.part")) == []


@pytest.mark.parametrize(
    ("words", "status"), [(("run",), 125), (("submit", "--name", "unsent-2"), 1)]
)
def test_code_that_can_not_be_sent_leaves_no_job(
    bed: beds.Bed, project: Path, words: tuple[str, ...], status: int
) -> None:
    for folder, told in ((".", "can't be reached"), ("none", "found no such folder")):
        done = subprocess.run(
            [PROGRAM, *words, "--code", folder, "--server", "http://127.0.0.1:9", "--", "true"],
            cwd=project, env=bed.environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, told in done.stderr) == (status, True), done.stderr
    bed.git("pull", "--quiet", "--rebase", "origin", "main", folder=bed.clone)
    assert list(bed.clone.rglob("unsent-2.yaml")) == []


def test_what_is_too_much_is_named(bed: beds.Bed, project: Path) -> None:
    with (project / "model.bin").open("wb") as file:
        file.truncate(257 * 2**20)
    done = muster(bed, project, "submit", "--code", ".", "--", "true")
    assert done.returncode == 1
    assert "model.bin: 257Mi" in done.stderr
    (project / ".musterignore").write_text("*.bin\n")
    assert muster(bed, project, "run", "--code", ".", "--cpus", "1", "--", "true").returncode == 0
