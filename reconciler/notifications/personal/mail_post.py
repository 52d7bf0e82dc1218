"""One e-mail over the mail server of who runs the controller."""

import email.message
import smtplib
from pathlib import Path

import msgspec

from reconciler.notifications import credentials, post_answers

#: How long the mail server may say nothing.
TIMEOUT_S = 20.0


class MailServer(msgspec.Struct, frozen=True):
    """The mail server to use.

    Attributes:
        host, port: where it is.
        sender: address that mail comes from.
        login: file with ``USER:PASSWORD`` on one line; None: it takes mail without.
        uses_tls: whether STARTTLS is demanded.
    """

    host: str
    port: int
    sender: str
    login: Path | None = None
    uses_tls: bool = True


def user_and_password(path: Path) -> tuple[str, str]:
    """Return what a login file holds.

    Raises:
        CredentialError: it can't be used, or others may read it.
    """
    user, colon, password = credentials.read(path.parent, path.name).partition(":")
    if not (user and colon and password):
        raise credentials.CredentialError(f"{path}: expected one line USER:PASSWORD")
    return user, password


def send(server: MailServer, mail: email.message.EmailMessage) -> post_answers.PostAnswer:
    """Send a mail. Refusals have the HTTP status that means the same: 400 for ever, 503 for now."""
    from reconciler.notifications import http_post  # noqa: PLC0415 - most controllers send nothing

    try:
        with smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S) as connection:
            if server.uses_tls:
                connection.starttls(context=http_post.tls_context())
            if server.login is not None:
                connection.login(*user_and_password(server.login))
            connection.send_message(mail, server.sender, [str(mail["To"])])
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        return _refused(max(codes, default=0), "it refused your address")
    except smtplib.SMTPResponseException as error:
        return _refused(int(error.smtp_code), "it refused")
    except credentials.CredentialError as error:
        return post_answers.PostAnswer(0, f"the controller's login of it can't be used: {error}")
    except (OSError, smtplib.SMTPException) as error:
        return post_answers.PostAnswer(0, http_post.why_unanswered(error))
    return post_answers.PostAnswer(200, "")


def _refused(code: int, why: str) -> post_answers.PostAnswer:
    # a login that is refused is mended by who runs the controller, so it is tried again
    is_final = 500 <= code < 600 and code not in {530, 534, 535, 538}
    return post_answers.PostAnswer(400 if is_final else 503, f"{why} (SMTP {code})")
