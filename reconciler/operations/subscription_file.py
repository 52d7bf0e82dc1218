"""The file of subscriptions in the controller's folder, and that of what became of them.

The server changes it for people, the controller drops those of people who have gone. Each change
holds a lock and replaces the whole file. A file that can't be read is never written.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from reconciler import lock_file
from reconciler.model.state import subscriptions
from reconciler.model.state.subscriptions import Subscription, SubscriptionError, TellingResult
from reconciler.operations.tokens import token_file

FILE = "subscriptions.json"
#: Written by the controller alone, and made again.
RESULTS = "subscriptions.told.json"
LOCK = "subscriptions.lock"
_LOCK_S = 5.0
_decode = msgspec.json.Decoder(list[Subscription]).decode
_decode_results = msgspec.json.Decoder(list[TellingResult]).decode


class SubscriptionFileError(Exception):
    """The file can't be read or written now; the message says why."""


class SubscriptionFile:
    """All subscriptions, as the file has them now.

    Args:
        state: the controller's folder.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._path = state / FILE
        self._seen: tuple[tuple[int, ...], tuple[Subscription, ...]] = ((), ())

    def all(self) -> tuple[Subscription, ...]:
        """Return all subscriptions, in the order in which they were added.

        Raises:
            SubscriptionFileError: the file can't be read.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise SubscriptionFileError(f"{self._path}: {error.strerror}") from None
        signature = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._seen
        if known[0] != signature:
            known = self._seen = (signature, self._read())
        return known[1]

    def of(self, identity: str) -> list[Subscription]:
        """Return the subscriptions of one person.

        Raises:
            SubscriptionFileError: the file can't be read.
        """
        return [one for one in self.all() if one.identity == identity]

    def add(self, wanted: Subscription) -> None:
        """Add a subscription.

        Raises:
            SubscriptionError: the name is in use, or there are too many.
            SubscriptionFileError: the file can't be read or written.
        """

        def change(known: Sequence[Subscription]) -> list[Subscription]:
            mine = [one for one in known if one.identity == wanted.identity]
            if any(one.name == wanted.name for one in mine):
                raise SubscriptionError(
                    f"name: you have a notification {wanted.name} already. To fix: take another "
                    f"name, or remove that one (muster notify remove {wanted.name})"
                )
            if len(mine) >= subscriptions.OF_PERSON_MAX:
                raise SubscriptionError(
                    f"you have {len(mine)} notifications, the most for one person. To fix: "
                    "remove one (muster notify list)"
                )
            if len(known) >= subscriptions.ALL_MAX:
                raise SubscriptionError(
                    f"this controller has {len(known)} notifications, the most in all"
                )
            return [*known, wanted]

        self._change(change)

    def remove(self, identity: str, name: str) -> Subscription | None:
        """Remove a subscription and return it; None: the person has none of that name.

        Raises:
            SubscriptionFileError: the file can't be read or written.
        """
        gone: list[Subscription] = []

        def change(known: Sequence[Subscription]) -> list[Subscription]:
            gone.extend(one for one in known if (one.identity, one.name) == (identity, name))
            return [one for one in known if one not in gone]

        self._change(change)
        return gone[0] if gone else None

    def ask_test(self, identity: str, name: str) -> int | None:
        """Have a subscription tested; return the number of the test, None: there is none such.

        Raises:
            SubscriptionFileError: the file can't be read or written.
        """
        number = secrets.randbits(48) + 1
        asked: list[str] = []

        def change(known: Sequence[Subscription]) -> list[Subscription]:
            found = []
            for one in known:
                is_meant = (one.identity, one.name) == (identity, name)
                asked.extend([name] if is_meant else [])
                found.append(msgspec.structs.replace(one, test=number) if is_meant else one)
            return found

        self._change(change)
        return number if asked else None

    def drop(self, identities: Collection[str]) -> None:
        """Remove all subscriptions of some people.

        Raises:
            SubscriptionFileError: the file can't be read or written.
        """
        self._change(lambda known: [one for one in known if one.identity not in identities])

    def results(self) -> dict[tuple[str, str], TellingResult]:
        """Return what became of the last message of each subscription; empty if nobody knows."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            listed = _decode_results((self._state / RESULTS).read_bytes())
            return {(one.identity, one.name): one for one in listed}
        return {}

    def keep_results(self, results: Collection[TellingResult]) -> None:
        """Write what became of messages.

        Raises:
            SubscriptionFileError: the file can't be written.
        """
        try:
            text = msgspec.json.encode(list(results)).decode()
            token_file.write_private(self._state / RESULTS, text)
        except OSError as error:
            raise SubscriptionFileError(f"{self._state / RESULTS}: {error.strerror}") from None

    def _read(self) -> tuple[Subscription, ...]:
        try:
            return tuple(_decode(self._path.read_bytes()))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise SubscriptionFileError(f"{self._path}: {error.strerror}") from None
        except msgspec.MsgspecError:  # its message may repeat what is secret
            raise SubscriptionFileError(
                f"{self._path} is damaged, and nobody is told of their jobs. To fix: who runs the "
                "controller mends it, restores it from a backup, or removes it"
            ) from None

    def _change(self, change: Callable[[Sequence[Subscription]], list[Subscription]]) -> None:
        try:
            with self._locked():
                known = self._read()
                fresh = change(known)
                if fresh != list(known):
                    token_file.write_private(self._path, msgspec.json.encode(fresh).decode())
        except lock_file.LockHeldError as error:
            raise SubscriptionFileError(f"{self._path} is in use by {error}; try again") from None
        except OSError as error:
            raise SubscriptionFileError(f"{self._path}: {error.strerror}") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = lock_file.open_file(self._state / LOCK)
        try:
            lock_file.lock(descriptor, _LOCK_S)
            yield
        finally:
            os.close(descriptor)
