"""A port that is taken here is answered with what works."""

import socket
from typing import Any, cast

import pytest

from reconciler.cli.interactive import port_forward
from reconciler.operations.client import api_client, endpoints, session_connection


class Running:
    """A controller whose only job runs."""

    def get(self, _path: str, **_query: Any) -> Any:
        """Return the job."""
        return {"job": {"state": "Running", "removed": False}}


def test_a_port_that_is_taken_here_is_answered_with_one_that_is_free(
    capsys: pytest.CaptureFixture[str],
) -> None:
    api = cast("api_client.ApiClient", Running())
    endpoint = endpoints.Endpoint("http://127.0.0.1:1")
    place = session_connection.SessionPlace("train")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = port_forward.WantedForward(place, 16006, local_port=port)
        assert port_forward.run(api, endpoint, wanted) == port_forward.FAILED
    told = " ".join(capsys.readouterr().err.split())
    assert told.endswith(
        f"can't listen on 127.0.0.1:{port}: Address already in use. To fix: any free port here, by "
        "muster forward JOB 0:16006"
    )
