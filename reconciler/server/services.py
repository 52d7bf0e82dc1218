"""Services that handlers share: the link, the sessions, the store, and the submitter."""

import asyncio
import contextlib
import pathlib
import time

from reconciler import metrics
from reconciler.metrics import plain_text
from reconciler.model.protocol import loop_messages
from reconciler.model.state import records
from reconciler.operations.audit import access_audit, audit_log
from reconciler.operations.changes import remote_changes
from reconciler.server import errors
from reconciler.server.auth import authentication
from reconciler.server.loop_link import LinkClient, LinkDownError
from reconciler.server.nodes import log_relay, node_metrics_pages, sessions, undeclared_nodes
from reconciler.store import StoreReader

#: The least time between two hints to the loop; it looks by itself soon after anyway.
HINT_EVERY_S = 0.2
#: How long the loop may take to make an override durable.
ANSWER_S_MAX = 15.0


class Services:
    """The collaborators of an application, made once."""

    def __init__(
        self,
        *,
        store_url: str,
        link_path: pathlib.Path,
        gate: authentication.Authenticator,
        submitter: remote_changes.Submitter | None = None,
    ) -> None:
        self.gate = gate
        self.submitter = submitter
        self.answers = metrics.Answers(gate.failed.counts)
        self.converted = plain_text.Converted()
        self.sessions = sessions.Sessions()
        self.undeclared = undeclared_nodes.UndeclaredNodes(self.sessions, lambda: self.reader)
        self.relay = log_relay.Relay(self.sessions)
        self.node_pages = node_metrics_pages.NodePages(self._node_page)
        self.stopping = asyncio.Event()
        self.published_changed = asyncio.Event()
        self.link = LinkClient(
            link_path,
            on_update=self._updated,
            on_connect=self.sessions.forget_orders,
            on_published=self._published,
            on_answer=self._answered,
        )
        self._asked: dict[str, asyncio.Future[str]] = {}
        #: The repository in force, if it is a folder of this machine, and the path in it.
        self.repository: tuple[pathlib.Path, str] | None = None
        #: The public key of what signs commits for users (None: nothing does; empty: it can't be
        #: told), and the folder below which such commits count.
        self.signing_key: str | None = None
        self.jobs_folder = "jobs/"
        #: The folder of the repository that is read; empty: all of it.
        self.folder = ""
        self.branch = ""
        #: The log of what became of revisions.
        self.audit_path = link_path.with_name(audit_log.FILE)
        self.access_audit = access_audit.AccessAudit(
            audit_log.Log(link_path.with_name(access_audit.FILE))
        )
        gate.failed.told = self._unauthenticated
        self.store_url = store_url
        self._reader: StoreReader | None = None
        self._hinted_at = -HINT_EVERY_S
        self._hint_later: asyncio.TimerHandle | None = None

    def _unauthenticated(self, address: str, request: str, reason: str, count: int) -> None:
        many = f"{count} calls" if count > 1 else "a call"
        self.access_audit.note(
            *("Unauthenticated", "", address, request, f"{many} without a valid token ({reason})")
        )

    def _published(self, _message: loop_messages.Published) -> None:
        # waiters hold the old event; the next wait gets the new one
        self.published_changed.set()
        self.published_changed = asyncio.Event()

    def _updated(self, message: loop_messages.NodeUpdate) -> None:
        self.sessions.update(message)
        self.node_pages.told(message.node)

    def _node_page(self, node: str) -> bytes | None:
        """Return a node's page, from its record and its reports since."""
        record = self.reader.node(node)
        if record is None:
            return None
        session = self.sessions.get(node)
        if session is None:
            return metrics.render_node(record, self.reader.attempts_alive(node))
        return metrics.render_node(
            session.newest(record),
            self.reader.attempts_alive(node),
            session.gpu_usage,
            words=dict(session.task_metrics),
            uses=session.task_use,
        )

    def _answered(self, message: loop_messages.OverrideAnswered) -> None:
        answer = self._asked.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(message.refused)

    async def ask(self, request: records.OverrideRequest) -> str:
        """Send an override to the loop. Return why it was refused; empty once it is durable.

        Raises:
            Failure: the loop can't be told, or does not answer in time.
        """
        answer = self._asked[request.id] = asyncio.get_running_loop().create_future()
        try:
            self.link.override(loop_messages.OverrideAsked(request))
            return await asyncio.wait_for(answer, ANSWER_S_MAX)
        except LinkDownError as error:
            raise errors.Failure(503, str(error), retry_after_s=1.0) from None
        except TimeoutError:
            raise errors.Failure(
                503,
                f"the controller's loop has not answered within {ANSWER_S_MAX:.0f} s; "
                "`muster overrides` shows if it was done",
                retry_after_s=1.0,
            ) from None
        finally:
            del self._asked[request.id]

    @property
    def reader(self) -> StoreReader:
        """The store, opened on first use.

        Raises:
            StoreError: it can't be opened now.
        """
        if self._reader is None:
            self._reader = StoreReader.open(self.store_url)
        return self._reader

    async def wait_any(self, changed: asyncio.Event, timeout_s: float) -> None:
        """Wait until ``changed``, the server stops, or the time is up."""
        waits = [asyncio.ensure_future(one.wait()) for one in (changed, self.stopping)]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    def hint(self) -> bool:
        """Ask the loop to look at the repository: at once, or soon if it was asked just now.

        Returns:
            True if it was asked at once.

        Raises:
            LinkDownError: the loop can't be reached.
        """
        now = time.monotonic()
        left_s = self._hinted_at + HINT_EVERY_S - now
        if left_s > 0:
            if self._hint_later is None:  # one hint is enough for all that came meanwhile
                running = asyncio.get_running_loop()
                self._hint_later = running.call_later(left_s, self._hint_late)
            return False
        self._hinted_at = now
        self.link.hint()
        return True

    def _hint_late(self) -> None:
        self._hint_later = None
        self.pushed()

    def pushed(self) -> None:
        """Have the loop look at the repository now, because something was pushed."""
        with contextlib.suppress(LinkDownError):  # then it looks by itself
            self.hint()

    def stop(self) -> None:
        """Let everybody who waits go."""
        if self._hint_later is not None:
            self._hint_later.cancel()
        self.stopping.set()
        self.sessions.release()

    def close(self) -> None:
        """Close the store."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
