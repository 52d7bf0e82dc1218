"""The controller's own lease, kept on its machine: until when nobody else may have led.

Git says who leads, and whoever may push can change what it says. As long as the own lease runs, no
controller replaces the record, so that who finds it replaced knows better than git. The end is a
time of the boot clock, which no setting of the wall clock moves, and is kept in a file of the
state folder for a controller that starts again in the same folder, in the same boot.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from reconciler.changes import lead_records
from reconciler.operations.tokens import token_file

log = logging.getLogger("muster.controller")

FILE = "lead.json"


class _Kept(msgspec.Struct, frozen=True):
    """A lease as it is kept: ``until`` by the boot clock of the machine that ``place`` names."""

    place: str
    until: float
    record: lead_records.LeadRecord


_decode_kept = msgspec.json.Decoder(_Kept).decode


def boot_clock() -> float:
    """Return the seconds since the machine was started, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class KeptLease:
    """The lease of the controller of one state folder.

    Args:
        state: the folder.
        place: what identifies it, and the boot of the machine; empty: nothing is kept.
        clock: seconds that only grow, of this boot.
    """

    def __init__(self, state: Path, place: str, clock: Callable[[], float] = boot_clock) -> None:
        self._path = state / FILE
        self._place = place
        self.clock = clock
        self._kept = self._load()

    def left_s(self) -> float:
        """Return for how many seconds nobody else may lead; 0: the lease is over."""
        return max(0.0, self._kept.until - self.clock()) if self._kept is not None else 0.0

    @property
    def record(self) -> lead_records.LeadRecord | None:
        """The record that was written last with this lease, if it runs."""
        return self._kept.record if self._kept is not None and self.left_s() > 0 else None

    def renew(self, until: float, record: lead_records.LeadRecord) -> None:
        """Note that a record is in git, with a lease that ends by ``clock`` at ``until``."""
        self._kept = _Kept(self._place, until, record)
        self._save(msgspec.json.encode(self._kept).decode())

    def end(self) -> None:
        """Note that the lease was given back."""
        self._kept = None
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s can't be removed: %s", self._path, error)

    def _save(self, text: str) -> None:
        """Write the file. Without it only a controller that starts again has to wait."""
        if not self._place:
            return
        try:
            token_file.write_private(self._path, text)
        except OSError as error:
            log.warning("%s can't be written: %s", self._path, error)

    def _load(self) -> _Kept | None:
        """Return the lease of the last controller of this folder; None: none, or of another."""
        try:
            kept = _decode_kept(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            log.warning("%s can't be read and does not count: %s", self._path, error)
            return None
        return kept if self._place and kept.place == self._place else None
