"""Keeps the files in which Access and Cluster are written, along one walk.

Changes of commits come in; the trust after an object is as it is written now goes out. Files that
somebody without the right changed count as unchanged.
"""

from collections.abc import Mapping

from reconciler.desired.authorize import trust_state
from reconciler.desired.documents import object_changes


class TrustedFiles:
    """The files, with their blobs, that hold objects of trusted kinds.

    Args:
        touched: reads blobs.
        places: files of each object at the start of the walk, by label.
    """

    def __init__(
        self, touched: object_changes.Touched, places: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._touched = touched
        self._places = {label: dict(files) for label, files in places.items()}

    def follow(self, changes: Mapping[str, Mapping[str, object_changes.Pair]]) -> None:
        """Take over the changes of a commit."""
        for label, files in changes.items():
            if trust_state.kind(label) not in trust_state.TRUSTED_KINDS:
                continue
            places = self._places.setdefault(label, {})
            for path, (_, new) in files.items():
                readable = self._touched.all_readable((new,))
                if new is not None and (self._touched.of(label, new) or not readable):
                    places[path] = new
                else:
                    places.pop(path, None)

    def renewed(self, trust: trust_state.Trust, label: str) -> trust_state.Trust:
        """Return the trust after ``label`` is as it is written now, in all its files.

        If an object is written twice, nobody can tell which is meant: the trust stays until one of
        the two is gone. It also stays while the object may be in an unreadable file.
        """
        kind = trust_state.kind(label)
        if kind not in trust_state.TRUSTED_KINDS:
            return trust
        places = self._written(trust, label)
        self._touched.fill(blob for _, blob in places)
        if any(not self._touched.of(one, blob) for one, blob in places):
            return trust
        written = [document for one, blob in places for document in self._touched.of(one, blob)]
        if not written:
            return trust.renewed(label, None)
        if len(written) > 1 or written[0].part is None:
            return trust
        return trust.renewed(written[0].label, written[0].part)

    def blobs(self, trust: trust_state.Trust, label: str) -> list[str]:
        """Return what has to be read to tell the trust after a change of ``label``."""
        if trust_state.kind(label) not in trust_state.TRUSTED_KINDS:
            return []
        return [blob for _, blob in self._written(trust, label)]

    def _written(self, trust: trust_state.Trust, label: str) -> list[tuple[str, str]]:
        """Return the objects, with a blob each, of which one may be meant by ``label``."""
        clusters = [one for one in self._places if trust_state.kind(one) == "Cluster"]
        alike = clusters if trust_state.kind(label) == "Cluster" else [label]
        return [
            (one, blob)
            for one in dict.fromkeys([*alike, label])
            for blob in self._counting(trust, one).values()
            if blob is not None
        ]

    def _counting(self, trust: trust_state.Trust, label: str) -> dict[str, str | None]:
        """Return the files, with their blobs, in which somebody with the right wrote an object."""
        denial = trust.denied.get(label)
        counted = denial.counted if denial is not None and denial.binds else {}
        return {**self._places.get(label, {}), **counted}
