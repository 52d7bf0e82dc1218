"""Options about notifications of people's own, and the notifier that they make."""

import argparse
import random
import time

from reconciler.model.values import addresses
from reconciler.notifications import credentials
from reconciler.notifications.personal import mail_post, people_notifier, personal_sender
from reconciler.operations import subscription_file
from reconciler.server.auth import tokens

_PEOPLE = ("user", "admin")


def check(options: argparse.Namespace) -> None:
    """Check the options, and make the path of the login absolute.

    Raises:
        ValueError: they are wrong; the message says how.
    """
    if options.smtp is not None:
        addresses.parse(options.smtp, "--smtp")
    if (options.smtp is None) != (options.smtp_from is None):
        raise ValueError("--smtp and --smtp-from belong together: give both or none")
    if options.smtp_from is not None and (
        "@" not in options.smtp_from or not options.smtp_from.isprintable()
    ):
        raise ValueError("--smtp-from: expected an address such as muster@example.org")
    if options.smtp_login is not None:
        if options.smtp is None:
            raise ValueError("--smtp-login needs --smtp HOST:PORT")
        host = addresses.parse(options.smtp, "--smtp")[0]
        if options.smtp_plain and not addresses.is_loopback(host):
            raise ValueError(
                "--smtp-plain would send the password of --smtp-login readable to another "
                "machine: leave one of them out"
            )
        options.smtp_login = options.smtp_login.absolute()
        try:
            mail_post.user_and_password(options.smtp_login)
        except credentials.CredentialError as error:
            raise ValueError(f"--smtp-login: {error}") from None


def hosts(options: argparse.Namespace) -> frozenset[str]:
    """Return the hosts that people may name beside Slack and public ones."""
    listed = options.notify_hosts.split(",")
    return frozenset(one.strip().lower() for one in listed) - {""}


def server_options(options: argparse.Namespace) -> list[str]:
    """Return what the server process is told of these options."""
    has_mail = [] if options.smtp is None else ["--notify-email"]
    return ["--notify-hosts", options.notify_hosts, *has_mail]


def people(options: argparse.Namespace) -> people_notifier.PeopleNotifier:
    """Return the notifier of people.

    Raises:
        TokenError: the token file can't be used.
    """
    known = tokens.WatchedTokens(options.token_file, any_node=options.any_node_token)
    return people_notifier.PeopleNotifier(
        subscription_file.SubscriptionFile(options.state),
        personal_sender.PersonalSender(hosts(options), _mail_server(options), time.time),
        is_known=lambda who: known.holder(who, _PEOPLE) is not None,
        clock=time.time,
        monotonic=time.monotonic,
        random=random.random,
    )


def _mail_server(options: argparse.Namespace) -> mail_post.MailServer | None:
    if options.smtp is None:
        return None
    host, port = addresses.parse(options.smtp, "--smtp")
    return mail_post.MailServer(
        host, port, options.smtp_from, options.smtp_login, uses_tls=not options.smtp_plain
    )
