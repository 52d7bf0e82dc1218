"""Folders that can be checked although git would not commit them as they are."""

from pathlib import Path

import pytest

from reconciler.operations.validate import folder_check
from tests.unit.desired import repositories

QUEUE = "apiVersion: muster/v1\nkind: Queue\nmetadata: {name: default}\nspec: {limit: {gpu: 4}}\n"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in repositories.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("inside", ["inner", "a/b [c]"])
@pytest.mark.parametrize("is_repository", [True, False])
def test_an_inner_repository_without_a_commit_is_left_out(
    tmp_path: Path, inside: str, *, is_repository: bool
) -> None:
    if is_repository:
        repositories.git(tmp_path, "init", "-q")
    (tmp_path / "queue.yaml").write_text(QUEUE)
    (tmp_path / inside).mkdir(parents=True)
    repositories.git(tmp_path / inside, "init", "-q")
    (tmp_path / inside / "other.yaml").write_text("not: muster\n")
    found, counts = folder_check.check_folder(tmp_path)
    assert (found.status.problems, dict(counts)) == ((), {"Queue": 1})


def test_a_file_is_answered_with_what_checks_it(tmp_path: Path) -> None:
    file = tmp_path / "queue.yaml"
    file.write_text(QUEUE)
    with pytest.raises(folder_check.NotAFolderError) as refused:
        folder_check.check_folder(file)
    assert f"`muster validate {tmp_path}`" in str(refused.value)
    assert f"muster submit --dry-run {file}" in str(refused.value)
    with pytest.raises(folder_check.NotAFolderError, match="there is no folder nowhere"):
        folder_check.check_folder(Path("nowhere"))
