"""The parts of a server, made once and wired to each other; only this module knows them all."""

import functools
import pathlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from litestar.di import Provide

from reconciler import metrics
from reconciler.metrics import plain_text
from reconciler.model.protocol import loop_messages
from reconciler.operations.audit import access_audit, audit_log
from reconciler.operations.changes import remote_changes
from reconciler.server import agent_sync
from reconciler.server.api import audit, explanations, plans
from reconciler.server.auth import authentication, failed_calls, hook_signatures
from reconciler.server.background import audit_watch, prune_timer
from reconciler.server.changes import (
    change_intake,
    change_review,
    ephemeral_intake,
    override_commits,
    queued_submissions,
    submission_withdrawal,
    waiting_submissions,
)
from reconciler.server.code import pack_store, pack_upkeep
from reconciler.server.interactive import relay_link, session_desk
from reconciler.server.logs import log_readers
from reconciler.server.loop_link import LinkClient
from reconciler.server.nodes import (
    log_relay,
    node_metrics_pages,
    node_page_renderer,
    report_budgets,
    sessions,
    undeclared_nodes,
)
from reconciler.server.override_requests import OverrideRequests
from reconciler.server.personal import notification_routes
from reconciler.server.process import fair_turns
from reconciler.server.relay import relay_messages
from reconciler.server.repository_facts import RepositoryFacts
from reconciler.server.repository_hints import RepositoryHints
from reconciler.server.server_store import ServerStore
from reconciler.server.waits import CycleNews, Stopping


class OperatorChoices(msgspec.Struct, frozen=True):
    """Choices of who runs the controller.

    Attributes:
        personal: notifications that people keep for themselves.
        hook_secret: file with the secret of a forge's webhooks; None: they need a token.
    """

    personal: notification_routes.PersonalSettings
    hook_secret: pathlib.Path | None = None


class Composition:
    """The parts of one server. No part gets this object: each gets the parts that it uses.

    Args:
        link_path: the socket of the loop; the logs of revisions and of calls are beside it.
        tokens: the tokens that count.
        store: the store that the loop writes.
        facts: what is known of the repository.
        submitter: pushes users' changes; None if there is no repository to push to.
        chosen: by who runs the controller.
    """

    def __init__(
        self,
        *,
        link_path: pathlib.Path,
        tokens: authentication.KnownTokens,
        store: ServerStore,
        facts: RepositoryFacts,
        submitter: remote_changes.Submitter | None,
        chosen: OperatorChoices,
        certificate_expires_at: Callable[[], float] | None = None,
    ) -> None:
        self.access_log = access_audit.AccessAudit(
            audit_log.Log(link_path.with_name(access_audit.FILE))
        )
        failed = failed_calls.FailedCalls(
            logged=functools.partial(authentication.note_unauthenticated, self.access_log)
        )
        self.gate = authentication.Authenticator(tokens, failed)
        self._budgets = report_budgets.ReportBudgets()
        self.answers = metrics.Answers(failed.counts, self._budgets.refused, certificate_expires_at)
        self.stopping = Stopping()
        self.turns = fair_turns.FairExecutor(authentication.CALLER.get)
        self._verifier = hook_signatures.HookVerifier(chosen.hook_secret)
        self._store = store
        self._facts = facts
        self._personal = chosen.personal
        self._submitter = submitter
        self._revision_log = audit_log.Log(link_path.with_name(audit_log.FILE))
        self._news = CycleNews(self.stopping)
        self._sessions = sessions.Sessions()
        self._node_pages = node_metrics_pages.NodePages(
            node_page_renderer.NodePageRenderer(store, self._sessions).render
        )
        self._link = LinkClient(
            link_path,
            on_update=self._updated,
            on_connect=self._sessions.forget_orders,
            on_published=self._published,
            on_answer=self._answered,
        )
        self._packs = pack_store.PackStore(link_path.parent)
        self._desk = session_desk.SessionDesk(
            functools.partial(relay_link.RelayLink, link_path.with_name(relay_messages.SOCKET)),
            *(self._sessions, self.access_log, self.gate),
            store=store,
        )
        self._override_requests = OverrideRequests(self._link.override)
        self._hints = RepositoryHints(self._link.hint)
        self._review = change_review.ChangeReview(store, facts)

    def _updated(self, message: loop_messages.NodeUpdate) -> None:
        """Pass on what the loop sent about a node."""
        self._sessions.update(message)
        self._node_pages.told(message.node)

    def _published(self, _message: loop_messages.Published) -> None:
        """Wake requests that follow what happens."""
        self._news.announce()

    def _answered(self, message: loop_messages.OverrideAnswered) -> None:
        """Pass on what became of an override."""
        self._override_requests.answered(message)

    def dependencies(self, address: str) -> dict[str, Provide]:
        """Return the parts that handlers ask for, by the names of their parameters.

        Args:
            address: where the server is reached, as ``HOST:PORT``.
        """
        undeclared = undeclared_nodes.UndeclaredNodes(self._sessions, lambda: self._store.reader)
        parts = {
            "access_log": self.access_log,
            "answers": self.answers,
            "desk": self._desk,
            "converted": plain_text.Converted(),
            "exchanges": agent_sync.AgentExchanges(
                *(self._link, self._sessions, undeclared, self._node_pages, self.stopping),
                budgets=self._budgets,
            ),
            "facts": self._facts,
            "gate": self.gate,
            "hints": self._hints,
            "intake": change_intake.ChangeIntake(
                *(self._submitter, self._review, self._hints, self.access_log, self._link),
                uncommitted=change_intake.UncommittedWays(
                    waiting_submissions.WaitingSubmissions(self._override_requests),
                    submission_withdrawal.SubmissionWithdrawal(
                        self._store, self._override_requests, self.access_log
                    ),
                ),
                ephemeral=ephemeral_intake.EphemeralIntake(
                    *(self._store, self._review, self._override_requests, self.access_log)
                ),
            ),
            "link": self._link,
            "listening_address": address,
            "news": self._news,
            "node_pages": self._node_pages,
            "override_commits": override_commits.OverrideCommits(
                self._store, self._submitter, self._hints, self._facts
            ),
            "override_requests": self._override_requests,
            "packs": self._packs,
            "personal": self._personal,
            "plans": plans.Plans(self._store.url),
            "readers": log_readers.LogReaders(),
            "relay": log_relay.Relay(self._sessions),
            "replays": explanations.Replays(self._store.url),
            "revision_log": self._revision_log,
            "sessions": self._sessions,
            "store": self._store,
            "verifier": self._verifier,
            "verifications": audit.Verifications(self._revision_log),
        }
        return {name: _provide(part) for name, part in parts.items()}

    async def open_store(self) -> None:
        """Open the store if it is there, before requests come."""
        await self._store.open()

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """Return the work that goes on for the life of the application."""
        watch = audit_watch.AuditWatch(self._revision_log, self.answers, self.stopping)
        found = [
            self._link.run(),
            self._node_pages.run(),
            watch.run(),
            self.access_log.run(),
            self._store.keep_open(),
            self._desk.follow(),
            self._desk.judge(),
            pack_upkeep.run(self._packs, self._store),
        ]
        if self._submitter is not None:
            housekeeping = prune_timer.Housekeeping(
                self._store, self._submitter, self._hints, self._facts
            )
            queued = queued_submissions.QueuedSubmissions(
                *(self._store, self._submitter, self._review),
                requests=self._override_requests,
                gate=self.gate,
                hints=self._hints,
            )
            found += [housekeeping.run(), self._submitter.run(), queued.run()]
        return found

    def stop(self) -> None:
        """Let everybody who waits go."""
        self._hints.stop()
        self.stopping.begin()
        self._sessions.release()

    def close(self) -> None:
        """End the threads that answer people, and close the store."""
        self.turns.end()
        self._store.close()


def _provide(part: object) -> Provide:
    """Return the provider of a part that is the same for every request."""
    return Provide(lambda: part, sync_to_thread=False)
