"""A folder has one cluster: a second one is refused and costs the first one nothing."""

import fcntl
import os
from pathlib import Path

import pytest

from reconciler.operations import endpoints, localcluster


def test_a_second_cluster_leaves_the_first_alone(tmp_path: Path) -> None:
    state = tmp_path / ".muster"
    state.mkdir()
    held = os.open(state / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    (state / "tokens").write_text("of the first\n")
    first = endpoints.Endpoint(url="http://127.0.0.1:1", token_file=str(state / "token"))
    endpoints.write(tmp_path, first)
    second = localcluster.LocalCluster(folder=tmp_path, repository=str(tmp_path), branch="main")
    try:
        with pytest.raises(localcluster.ClusterError, match=r"is up in .* already"):
            second.start()
        second.stop()
        assert (state / "tokens").read_text() == "of the first\n"
        assert (tmp_path / endpoints.ENDPOINT_FILE).exists()
        assert not second.controller_alive
    finally:
        os.close(held)
