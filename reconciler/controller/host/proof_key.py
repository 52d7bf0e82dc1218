"""The key by which nodes prove what was assigned to them, in a file of the state folder.

The store has a copy, so that a backup has it, and a new controller goes on with it.
"""

import logging
import os
from pathlib import Path

from reconciler.engines import assignment_proofs
from reconciler.operations.tokens import token_file

log = logging.getLogger("muster.controller")

FILE = "assignment.key"


def load(state: Path, stored: bytes | None) -> tuple[bytes, ...]:
    """Return the keys whose proofs count. The first makes proofs, and is in the file from now on.

    A store from elsewhere comes with its key, which the nodes have proofs of: it goes before that
    of the file, which counts until the controller ends.

    Args:
        state: the folder.
        stored: the store's copy; None: it has none.
    """
    path = state / FILE
    written, stored = _read(path), stored if _is_key(stored) else None
    key = stored or written or os.urandom(assignment_proofs.KEY_BYTES)
    if key != written:
        try:
            token_file.write_private(path, f"{key.hex()}\n")
        except OSError as error:
            log.warning("%s can't be written: %s; the store alone has the key", path, error)
    return tuple(dict.fromkeys(filter(None, (key, written))))


def _is_key(found: bytes | None) -> bool:
    return found is not None and len(found) == assignment_proofs.KEY_BYTES


def _read(path: Path) -> bytes | None:
    """Return the key of a file; None if there is none.

    Without its key a controller leads as well: after a loss of the store, somebody has to say which
    nodes to believe.
    """
    try:
        found = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("%s can't be read and is made anew: %s", path, error)
        return None
    if not _is_key(found):
        log.warning("%s holds no key of Muster and is made anew", path)
        return None
    return found
