"""Signatures of git forges, by which they may say that the repository has changed.

Forges sign the body with a secret (GitHub, Gitea, Forgejo) or send the secret itself (GitLab). The
body is hashed as it comes and never kept.
"""

import hashlib
import hmac
import logging
import pathlib
from collections.abc import AsyncIterator, Mapping

from reconciler.operations.tokens import hook_secret
from reconciler.server import errors

_LOG = logging.getLogger(__name__)

#: The most bytes of a forge's body; GitHub sends no more.
BODY_BYTES_MAX = 25 * 2**20
#: The header that holds GitLab's secret.
GITLAB_TOKEN = "x-gitlab-token"  # noqa: S105 - the name of a header
#: Headers with the hex HMAC-SHA256 of the body; what GitHub writes begins with its prefix.
SIGNATURES = ("x-hub-signature-256", "x-gitea-signature", "x-forgejo-signature")
_PREFIX = "sha256="


class HookVerifier:
    """Verifies signatures of webhooks.

    Args:
        path: file with the secret; None: no signature counts.
    """

    def __init__(self, path: pathlib.Path | None) -> None:
        self._path = path

    def is_signed(self, headers: Mapping[str, str]) -> bool:
        """Return True if a call has a signature that might count."""
        named = any(name in headers for name in (GITLAB_TOKEN, *SIGNATURES))
        return self._path is not None and named

    async def is_valid(self, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> bool:
        """Return True if the secret has signed a body, or is in the headers.

        Raises:
            Failure: 413, the body is too large; 503, the secret can't be read.
        """
        if self._path is None:
            return False
        secret = _secret(self._path)
        given = headers.get(GITLAB_TOKEN, "").encode(errors="replace")
        if given and hmac.compare_digest(given, secret):
            return True
        signatures = [headers[name] for name in SIGNATURES if name in headers]
        if not signatures:
            return False
        made, size = hmac.new(secret, digestmod=hashlib.sha256), 0
        async for part in body:
            size += len(part)
            if size > BODY_BYTES_MAX:
                message = f"the body: found more than {BODY_BYTES_MAX} bytes, expected fewer"
                raise errors.Failure(413, message)
            made.update(part)
        wanted = made.hexdigest().encode()
        found = (one.removeprefix(_PREFIX).lower().encode(errors="replace") for one in signatures)
        return any(hmac.compare_digest(one, wanted) for one in found)


def _secret(path: pathlib.Path) -> bytes:
    """Return the secret in a file.

    Raises:
        Failure: 503, it can't be read.
    """
    try:
        return hook_secret.read(path)
    except hook_secret.HookSecretError as error:
        _LOG.error("%s", error)
        message = "the secret of webhooks can't be read; the controller's log says why"
        raise errors.Failure(503, message, retry_after_s=60.0) from None
