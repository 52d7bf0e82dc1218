"""Files that people ask for beside the logs: there when a command ends, with all it printed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds
from tests.integration.test_submit_place import QUEUES, muster


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path_factory.mktemp("files"), nodes=1) as made:
        made.commit({"queues.yaml": QUEUES})
        yield made


def test_output_is_in_the_folder_of_the_submission(bed: beds.Bed, tmp_path: Path) -> None:
    said = "echo $SLURM_JOB_ID; echo oh >&2"
    done = muster(
        bed, tmp_path, "run", "--cpus", "1", "--name", "both", "--framework", "slurm",
        "--output-file", "%x-%j.out", "--", "sh", "-c", said,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()
    assert (tmp_path / f"both-{number}.out").read_text() == f"{number}\noh\n"
    assert bed.output("both") == f"{number}\n", "the log has it as well"


def test_lines_of_a_script_name_files_for_each_element(bed: beds.Bed, tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text(
        "#!/bin/sh\n#SBATCH -J sweep\n#SBATCH --array=1-2\n#SBATCH -o out/%x_%a -e out/%a.err\n"
        "echo $MUSTER_ARRAY_INDEX\necho oh >&2\n"
    )
    (tmp_path / "out").mkdir()
    done = muster(bed, tmp_path, "submit", "--cpus", "1", "go.sh")
    assert done.returncode == 0, done.stderr
    bed.until_state("sweep", "Succeeded")
    found = {one.name: one.read_text() for one in (tmp_path / "out").iterdir()}
    assert found == {"sweep_1": "1\n", "sweep_2": "2\n", "1.err": "oh\n", "2.err": "oh\n"}


def test_a_file_that_cannot_be_opened_is_the_reason(bed: beds.Bed, tmp_path: Path) -> None:
    done = muster(bed, tmp_path, "run", "--name", "no", "--output-file", "no/out", "--", "true")
    assert done.returncode == 125
    (attempt,) = bed.job("no")["attempts"]
    assert attempt["endReason"] == "StartFailed"
    assert f"output file {tmp_path}/no/out: No such file or directory" in attempt["message"]
    assert f"mkdir -p {tmp_path}/no" in done.stderr
