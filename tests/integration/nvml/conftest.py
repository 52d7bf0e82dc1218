"""A stand-in library, compiled once, and watches over it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.gpus import gpu_watcher, nvml_client
from agents.settings import AgentSettings
from tests.nvml import standin

Look = Callable[..., gpu_watcher.GpuLook]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Folders with the library, by whether its driver is old."""
    if standin.COMPILER is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("nvml")
    return {old: standin.build(folder, old=old) for old in (False, True)}


class Scene:
    """One machine: a situation that can change, and an agent's watch over it."""

    def __init__(
        self, folder: Path, libraries: dict[bool, Path], patch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self.situation = folder / "situation"
        self._libraries = libraries
        self._patch = patch
        self.probes: list[nvml_client.NvmlClient] = []

    def say(self, lines: list[str]) -> None:
        """What NVML says from now on."""
        standin.write(self.situation, lines)

    def probe(self, *, old: bool = False, **limits: float) -> nvml_client.NvmlClient:
        """A way to the stand-in."""
        for name, value in standin.environment(self._libraries[old], self.situation).items():
            self._patch.setenv(name, value)
        self.probes.append(nvml_client.NvmlClient(**limits))
        return self.probes[-1]

    def watch(
        self, *, old: bool = False, boot_id: str = "boot", **chosen: Any
    ) -> gpu_watcher.GpuWatch:
        """An agent's watch."""
        settings = AgentSettings("http://127.0.0.1:1", "n1", self.folder, **chosen)
        return gpu_watcher.GpuWatch(self.folder, boot_id, self.probe(old=old), settings)


@pytest.fixture
def scene(
    tmp_path: Path, libraries: dict[bool, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """A machine on which nothing has been said yet."""
    made = Scene(tmp_path, libraries, monkeypatch)
    yield made
    for one in made.probes:
        one.close()
