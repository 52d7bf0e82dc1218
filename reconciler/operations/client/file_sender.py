"""A client of the controller's API that also sends files, which it reads as it sends them."""

import contextlib
import http.client
from collections.abc import Mapping
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

from reconciler.operations.client import api_client

Json = Any


class FileSender(api_client.ApiClient):
    """A connection to one controller for files of any size."""

    def put(self, path: str, file: BinaryIO, size: int, query: Mapping[str, str]) -> Json:
        """Return the JSON of a PUT of a file.

        Args:
            path: of the request, without what would have to be escaped.
            file: at its beginning.
            size: bytes to send.
            query: parameters.

        Raises:
            ApiError: anything but success.
        """
        target = f"{self._parts.path.rstrip('/')}{path}"
        if query:
            target += f"?{urlencode(query, quote_via=quote)}"
        told = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        connection = self._connection(self._answer_s)
        try:
            # refused before all of it was sent: the answer says why
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("PUT", target, file, {**self._headers, **told})
            answer = connection.getresponse()
            content = self._content(answer)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise self._error(path, answer, content)
        return self._json(path, content)
