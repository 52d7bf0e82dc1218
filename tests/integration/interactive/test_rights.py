"""Who may run commands in whose tasks, and that a session ends with its right."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import beds
from tests.integration.interactive import people

ROLE = """\
apiVersion: muster/v1
kind: Access
metadata: {{name: people}}
spec:
  identities:
    - {{email: ada@x.org}}
    - {{email: bob@x.org}}
  roles:
    - name: researchers
      members: ["*"]
      allow:
        - {{verbs: {verbs}, queues: [default]}}
    - name: helpers
      members: [bob@x.org]
      allow:
        - {{verbs: [exec], queues: [default]}}
"""
JOB = "  owner: ada@x.org\n  command: [sleep, '600']\n  resources: {cpu: 1, memory: 256Mi}"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[beds.Bed]:
    with beds.Bed(tmp_path, nodes=1) as made:
        made.commit(
            {
                "access.yaml": ROLE.format(verbs="[submit, exec]"),
                "jobs/mine.yaml": beds.job("mine", JOB),
            }
        )
        made.until_state("mine", "Running")
        yield made


def _token(bed: beds.Bed, who: str, folder: Path) -> Path:
    """A token of a person."""
    made = subprocess.run(
        [*people.MUSTER, "token", "create", who, "--role", "user", "--tokens",
         str(bed.cluster.state / "tokens")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    path = folder / f"{who}.token"
    path.touch(mode=0o600)
    path.write_text(made.stdout)
    return path


def test_a_right_is_asked_for_and_judged_again(bed: beds.Bed, tmp_path: Path) -> None:
    ada, bob = (_token(bed, who, tmp_path) for who in ("ada@x.org", "bob@x.org"))

    def may(token: Path) -> subprocess.CompletedProcess[bytes]:
        return people.muster(bed, "exec", "mine", "--token-file", str(token), "--", "true")

    bed.until(lambda: may(ada).returncode == 0)
    refused = may(bob)
    assert refused.returncode == 3
    assert b"act as ada@x.org" in refused.stderr or b"impersonate on ada@x.org" in refused.stderr
    words = ["exec", "mine", "--token-file", str(ada), "--"]
    with people.Person(bed, *words, "sh", "-c", "echo in; t=34; sleep ${t}01.5") as person:
        person.sees("in")
        bed.commit({"access.yaml": ROLE.format(verbs="[submit]")})
        assert person.leaves() == 255
        assert b"allows exec on Queue/default" in person.seen
    people.until(lambda: not people.marked("3401.5"), "the end of its command")
    assert may(ada).returncode == 3
