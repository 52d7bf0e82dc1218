"""Proofs that an attempt was assigned to a node, by which a store from the past knows it again.

A proof is a keyed hash over the attempt's id, which names job, run, the hash of its specification,
task and try, and over the node. The node gets it with the assignment, and reports it back. Who has
no key can't make one for what another node runs, or for what nobody assigned.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

KEY_BYTES = 32
#: Half of a SHA-256: nobody can try out so many.
_PROOF_BYTES = 16


class AssignmentProofs:
    """A maker and judge of proofs.

    Args:
        key: makes proofs; None: one that nobody has.
        older: keys whose proofs count as well.
    """

    def __init__(self, key: bytes | None = None, older: Iterable[bytes] = ()) -> None:
        #: The key; empty: one that nobody has.
        self.key = key or b""
        self._key = key or secrets.token_bytes(KEY_BYTES)
        self._keys = tuple(dict.fromkeys([self._key, *older]))

    def of(self, attempt: str, node: str) -> str:
        """Return the proof that an attempt was assigned to a node."""
        return _proof(self._key, attempt, node)

    def proven(self, node: str, proofs: Mapping[str, str]) -> tuple[str, ...]:
        """Return the attempts of which a node has a proof.

        Args:
            node: that reports them.
            proofs: by attempt, as it reports them.
        """
        return tuple(name for name, proof in proofs.items() if self._is_proof(name, node, proof))

    def _is_proof(self, attempt: str, node: str, proof: str) -> bool:
        given = proof.encode()
        return any(
            hmac.compare_digest(_proof(key, attempt, node).encode(), given) for key in self._keys
        )


def _proof(key: bytes, attempt: str, node: str) -> str:
    # no id and no name of a node has a NUL
    message = f"muster-assignment\0{attempt}\0{node}".encode()
    return hmac.digest(key, message, hashlib.sha256)[:_PROOF_BYTES].hex()
