"""Free ports are none that the kernel may give to a connection in between."""

import socket
from pathlib import Path

import pytest

from reconciler.operations.local import free_ports

KERNELS = range(20_000, 50_000)


def test_ports_are_not_those_of_connections(tmp_path: Path) -> None:
    chosen = tmp_path / "range"
    chosen.write_text(f"{KERNELS.start}\t{KERNELS.stop - 1}\n")
    found = [free_ports.free_port(chosen) for _ in range(200)]
    assert not set(found) & set(KERNELS)
    assert min(found) >= 10_000
    assert len(set(found)) > 190  # drawn: who asks at once gets another


@pytest.mark.parametrize("text", ["1024 65535", "", "unknown"])
def test_the_kernel_chooses_where_no_others_are_left(tmp_path: Path, text: str) -> None:
    chosen = tmp_path / "range"
    chosen.write_text(text)
    assert free_ports._drawn(chosen) == []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_ports.free_port(chosen)))
