"""Decodes answers of a controller: a field that one lacks is said to be missing, not a defect.

``ApiClient`` makes an ``ApiError`` of that at the end of its block; of what is read of an answer
after it, the command ends with the error's own words. Fields are only ever added: a
controller that does not send one is older than who reads it. Where an older one may lack a field,
it is read with ``get``.
"""

from typing import Any

import msgspec

from reconciler import __version__
from reconciler.model.values import found_values

_FIX = "To fix: update the controller, or use the command of its version (muster --version)"


def _older(url: str, which: str = "") -> str:
    where = f" at {url}" if url else ""
    return f"the controller{where}{which} is older than this command (version {__version__})"


def no_route(url: str, path: str) -> str:
    """Return what is wrong if a controller has nothing at a path that is asked for."""
    return f"{_older(url)}: it has no {path}. {_FIX}"


class MissingFieldError(Exception):
    """Error: an answer lacks a field that is read; ``field`` is its name."""

    def __init__(self, field: object) -> None:
        self.field = str(field)
        super().__init__(self.told())

    def told(self, url: str = "", version: str = "") -> str:
        """Return what is wrong and how to fix it.

        Args:
            url: of the controller; empty: it is not known.
            version: of the controller; empty: it does not say.
        """
        which = f" (version {version})" if version else ""
        return f"{_older(url, which)}: its answer has no field {self.field!a}. {_FIX}"


class AnswerObject(dict[str, Any]):
    """A JSON object of an answer; a field that is not there raises ``MissingFieldError``."""

    def __missing__(self, key: object) -> Any:
        raise MissingFieldError(key)


def decode(content: bytes) -> Any:
    """Return the value of an answer.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return _told_missing(msgspec.json.decode(content))
    except msgspec.DecodeError as problem:
        raise ValueError(str(problem)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_object(content: bytes, where: str) -> AnswerObject:
    """Return the JSON object that an answer of a controller is.

    Args:
        content: of the answer.
        where: it comes from.

    Raises:
        ValueError: it is something else, so no controller has made it.
    """
    try:
        found = decode(content)
    except ValueError:
        raise ValueError(_strange(where, "no JSON", content.decode("utf-8", "replace"))) from None
    if isinstance(found, AnswerObject):
        return found
    raise ValueError(_strange(where, "no JSON object", found))


def _strange(where: str, what: str, found: Any) -> str:
    return (
        f"{where}: the answer is {what}; is this a Muster controller? Found "
        f"{found_values.quote(found)}, expected a JSON object. To fix: name the controller's own "
        "address, with --server, MUSTER_SERVER or muster login"
    )


def _told_missing(value: Any) -> Any:
    """Return a value with objects that say which field they lack."""
    if isinstance(value, dict):
        return AnswerObject([(key, _told_missing(one)) for key, one in value.items()])
    return [_told_missing(one) for one in value] if isinstance(value, list) else value
