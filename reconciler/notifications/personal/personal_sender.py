"""One letter to one receiver, and why it was not taken, in words without any secret."""

from collections.abc import Callable

import msgspec

from reconciler.model.state import subscriptions
from reconciler.notifications import post_answers
from reconciler.notifications.personal import forms, letters, mail_post


class PersonalSender(msgspec.Struct, frozen=True):
    """Sender of letters.

    Attributes:
        hosts: that who runs the controller allows, whatever their addresses.
        server: for mail; None: none is sent.
        clock: seconds since the epoch.
    """

    hosts: frozenset[str]
    server: mail_post.MailServer | None
    clock: Callable[[], float]

    def send(
        self, receiver: subscriptions.Subscription, letter: letters.Letter
    ) -> post_answers.PostAnswer:
        """Send a letter; the answer's text is for the person, and repeats nothing of theirs."""
        from reconciler.notifications import http_post  # noqa: PLC0415 - most controllers send nothing
        from reconciler.notifications.personal import pinned_post  # noqa: PLC0415

        now = self.clock()
        if receiver.kind == "email":
            if self.server is None:
                return post_answers.PostAnswer(400, "this controller sends no e-mail any more")
            mail = forms.mail(self.server.sender, receiver, letter, now)
            found = mail_post.send(self.server, mail)
            return found._replace(text=found.text and f"the mail server: {found.text}")
        try:
            subscriptions.check(receiver, hosts=self.hosts, has_mail=self.server is not None)
        except subscriptions.SubscriptionError as error:  # what is allowed has changed
            return post_answers.PostAnswer(400, str(error))
        is_slack = receiver.kind == "slack"
        request = (
            forms.slack(receiver.url, letter) if is_slack else forms.webhook(receiver, letter, now)
        )
        try:
            if is_slack or subscriptions.host_of(receiver.url) in self.hosts:
                found = http_post.post(request)
            else:
                found = pinned_post.post(request)
        except pinned_post.UnreachableError as error:
            return post_answers.PostAnswer(0, str(error))
        except http_post.ERRORS as error:
            return post_answers.PostAnswer(0, http_post.why_unanswered(error))
        return found._replace(text="" if found.status < 300 else f"status {found.status}")
