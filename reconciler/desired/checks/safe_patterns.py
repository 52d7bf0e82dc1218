"""JSON Schemas of policies with bounded regular expressions and references.

A schema comes in and a validator goes out that searches with a time limit and lets other threads
run meanwhile. With ``re``, nested repetitions and thirty characters could block the process for
years; a few dozen references that each lead to two others are as bad.
"""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import regex

from reconciler.desired.checks import policy_answers
from reconciler.model.values import found_values

#: The longest that one search may take.
SEARCH_S_MAX = 0.5
#: The most references that are followed to judge one object.
REFERENCES_MAX = 10_000
#: Keywords that search by themselves, which nothing here stops.
_UNBOUNDED = ("unevaluatedProperties", "patternProperties")
_PATTERNS_MAX = 1_000


class SlowPatternError(Exception):
    """A pattern takes too long on a submitted text."""

    def __init__(self, pattern: str) -> None:
        super().__init__(
            f"its pattern {found_values.quote(pattern)} takes longer than {SEARCH_S_MAX:g} s on "
            "what is written "
            "here, as a repetition within a repetition does: write it without one"
        )


class TooManyReferencesError(Exception):
    """A schema leads to more references than are followed."""

    def __init__(self) -> None:
        super().__init__(
            f"its schema leads to more than {REFERENCES_MAX} references, as references do that "
            "each lead to several others: write it without them"
        )


class TooManySearchesError(SlowPatternError):
    """The patterns of a schema take too long together."""

    def __init__(self, limit_s: float) -> None:
        Exception.__init__(
            self,
            f"its patterns together take longer than {limit_s:g} s on what is written here: write "
            "fewer, without repetitions within repetitions",
        )


class _Bounds(threading.local):
    """The references and searches that are left to each thread."""

    references = REFERENCES_MAX
    searches_s = math.inf
    searches_s_max = math.inf


_bounds = _Bounds()


@contextlib.contextmanager
def bounded(searches_s: float = policy_answers.SEARCHES_S_MAX) -> Iterator[None]:
    """Judge one object inside the block: :class:`TooManyReferencesError` ends it, and
    :class:`SlowPatternError` does if its searches take longer than ``searches_s``.
    """
    _renew(searches_s)
    try:
        yield
    finally:
        _renew(math.inf)


def _renew(searches_s: float) -> None:
    _bounds.references = REFERENCES_MAX
    _bounds.searches_s = _bounds.searches_s_max = searches_s


@functools.lru_cache(maxsize=_PATTERNS_MAX)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern)


def _search(pattern: str, text: str) -> bool:
    limit_s = min(SEARCH_S_MAX, _bounds.searches_s)
    if limit_s <= 0:
        raise TooManySearchesError(_bounds.searches_s_max)
    began = time.monotonic()
    try:
        return _compiled(pattern).search(text, concurrent=True, timeout=limit_s) is not None
    except TimeoutError:
        if limit_s < SEARCH_S_MAX:
            raise TooManySearchesError(_bounds.searches_s_max) from None
        raise SlowPatternError(pattern) from None
    finally:
        _bounds.searches_s -= time.monotonic() - began


def faults(schema: Any) -> Iterator[str]:
    """Yield faults of the patterns of a schema.

    Raises:
        RecursionError: it is nested too deeply.
    """
    if isinstance(schema, list):
        for inner in schema:
            yield from faults(inner)
    if not isinstance(schema, dict):
        return
    if all(keyword in schema for keyword in _UNBOUNDED):
        yield f"{' and '.join(_UNBOUNDED)} don't go together here: use additionalProperties"
    named = schema.get("patternProperties")
    patterns = [schema.get("pattern"), *(named if isinstance(named, dict) else ())]
    for pattern in patterns:
        if isinstance(pattern, str):
            try:
                _compiled(pattern)
            except regex.error as error:
                yield f"{found_values.quote(pattern)} is no regular expression: {error}"
    for inner in schema.values():
        yield from faults(inner)


def validator(schema: Any) -> Any:
    """Return a validator that uses nothing outside the schema."""
    import referencing  # noqa: PLC0415 - with the library below

    registry: referencing.Registry[Any] = referencing.Registry()
    return _kind()(schema, registry=registry)


@functools.cache
def _kind() -> Any:
    """Return the class of the draft's validator with bounded searches."""
    import jsonschema  # noqa: PLC0415 - it takes long to import, and most clusters have no policy

    extend: Any = jsonschema.validators.extend
    usual: Any = jsonschema.Draft202012Validator
    return extend(
        usual,
        {
            **{name: _counted(usual.VALIDATORS[name]) for name in ("$ref", "$dynamicRef")},
            "pattern": _pattern,
            "patternProperties": _pattern_properties,
            "additionalProperties": _additional_properties,
        },
    )


def _counted(follow: Any) -> Any:
    """Return a keyword's function that counts how often it is called."""

    def counted(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _bounds.references -= 1
        if _bounds.references < 0:
            raise TooManyReferencesError
        yield from follow(validator, reference, instance, schema) or ()

    return counted


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    del schema
    if validator.is_type(instance, "string") and not _search(pattern, instance):
        yield _error(f"{found_values.quote(instance)} does not match {found_values.quote(pattern)}")


def _pattern_properties(validator: Any, named: Any, instance: Any, schema: Any) -> Iterator[Any]:
    del schema
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in named.items():
        for key, value in instance.items():
            if _search(pattern, key):
                yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known, named = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [
        key
        for key in instance
        if key not in known and not any(_search(pattern, key) for pattern in named)
    ]
    if validator.is_type(inner, "object"):
        for key in extras:
            yield from validator.descend(instance[key], inner, path=key)
    elif not inner and extras:
        yield _error(f"additional properties are not allowed: {', '.join(map(repr, extras))}")


def _error(message: str) -> Any:
    import jsonschema  # noqa: PLC0415 - there is a validator already

    return jsonschema.ValidationError(message)
