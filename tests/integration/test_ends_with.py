"""What is left of a task whose job has succeeded without it."""

from pathlib import Path

from tests.integration import beds

#: The worker dies of SIGTERM; what it has started elsewhere would use all of the grace.
JOB = """\
  owner: tester@example.org
  endsWith: head
  checkpoint: {{signal: SIGTERM, grace: 30m}}
  groups:
    - name: head
      resources: {{cpu: 1, memory: 16Mi}}
      script: |
        until [ -e {folder}/begun ]; do sleep 0.1; done
    - name: worker
      resources: {{cpu: 1, memory: 16Mi}}
      script: |
        setsid sh -c 'trap : TERM; touch {folder}/begun; while :; do sleep 0.1; done' &
        sleep 600
"""


def test_it_does_not_last_longer_than_the_first_process(tmp_path: Path) -> None:
    with beds.Bed(tmp_path, nodes=1, cpus=2) as bed:
        bed.commit({"joined.yaml": beds.job("joined", JOB.format(folder=tmp_path))})
        bed.until_state("joined", "Succeeded")
        ends = {one["task"]: one["endReason"] for one in bed.job("joined")["attempts"]}
        assert ends == {"head-0": "Exited", "worker-0": "SiblingEnded"}
