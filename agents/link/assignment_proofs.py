"""Keeps the proofs of what the controller has assigned to this node, across restarts."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from agents.host import operator_log

FILE = "proofs.json"


def load(root: Path, says: operator_log.Console) -> dict[str, str]:
    """Return the saved proofs by attempt; none if they can't be read."""
    path = root / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        says.say(f"{path} can't be read: {problem}; going on without")
        return {}
    if not isinstance(found, dict):
        says.say(f"{path} holds no proofs; going on without")
        return {}
    return {name: proof for name, proof in found.items() if isinstance(proof, str)}


class ProofFile:
    """The file of an agent's proofs. Without it only a store from the past knows less."""

    def __init__(self, root: Path, says: operator_log.Console) -> None:
        self._path = root / FILE
        self._says = says
        self._complained = False

    def save(self, proofs: Mapping[str, str]) -> None:
        """Write all proofs. They need not outlive the machine: its tasks do not, either."""
        fresh = self._path.with_name(f"{FILE}.new")
        try:
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(dict(proofs), file)
            fresh.replace(self._path)
        except OSError as problem:
            if not self._complained:
                self._says.say(f"{self._path} can't be written: {problem}")
            self._complained = True
        else:
            self._complained = False
