"""Loaders over a repository behind the real judgement of safety, closed when the test is over."""

from collections.abc import Callable

from reconciler.core.safety import sync_limits
from reconciler.desired.apply import last_good, loader
from reconciler.desired.git import source
from reconciler.model.state import records
from tests.unit.desired.repositories import Repository

Make = Callable[..., loader.Loader]


class Loaders:
    """Makes loaders; ``clock`` is what they go by where nothing else is said."""

    def __init__(self, repository: Repository, clock: Callable[[], float]) -> None:
        self._repository = repository
        self._clock = clock
        self._made: list[loader.Loader] = []

    def make(
        self,
        known: last_good.LastGood | None = None,
        clock: Callable[[], float] | None = None,
        *,
        accept_revision: str | None = None,
    ) -> loader.Loader:
        """One that knows ``known`` of before."""
        chosen = clock or self._clock
        one = loader.Loader(
            source.GitSource(str(self._repository.path)),
            known or last_good.LastGood(),
            accept_revision=accept_revision,
            gate=sync_limits.SafetyGate(records.Observed, chosen),
            clock=chosen,
        )
        self._made.append(one)
        return one

    def close(self) -> None:
        """Close all of them."""
        for one in self._made:
            one.close()


def restarted(
    make: Make, before: loader.Loader, *, accept_revision: str | None = None
) -> loader.Loader:
    """A loader that has read what one before it has left."""
    known = last_good.decode(last_good.encode(before.incumbents()))
    return make(known, accept_revision=accept_revision)
