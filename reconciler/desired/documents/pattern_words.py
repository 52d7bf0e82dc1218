"""Words for the patterns of the schemas: what a text has to be like, and an example.

People are never shown a regular expression. A test goes over all schemas: a pattern without words
here fails it.
"""

import functools
import re
from typing import NamedTuple

from reconciler.model.documents import fields, job_spec
from reconciler.model.values import quantities


class PatternWords(NamedTuple):
    """Words for a pattern: a requirement, and a text that meets it."""

    requirement: str
    example: str


_PATH = "a path without a leading /, and without . and .. in it"
_DURATION = "numbers with w, d, h, m or s, or D-HH:MM:SS, HH:MM:SS, or minutes"
_DIGEST = "64 hexadecimal digits"

_WORDS = {
    fields.NAME_PATTERN: PatternWords("at most 63 of a-z, 0-9 and -, no - at either end", "team-a"),
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": PatternWords(
        "at most 63 of a-z, 0-9 and -, no - at either end", "chat"
    ),
    quantities.MEMORY_PATTERN: PatternWords(
        "bytes, or a number with k, M, G, T, P, Ki, Mi, Gi, Ti or Pi", "8Gi"
    ),
    quantities.CPU_PATTERN: PatternWords(
        "a number with at most 3 decimals, or thousandths with m", "1.5"
    ),
    quantities.DURATION_PATTERN: PatternWords(_DURATION, "1h30m"),
    rf"{quantities.DURATION_PATTERN}|^none$": PatternWords(f"{_DURATION}, or none", "30s"),
    job_spec.ENVIRONMENT_PATTERN: PatternWords(
        "A-Z, a-z, 0-9 and _, no digit first", "DATA_FOLDER"
    ),
    fields.MIG_PATTERN: PatternWords("a MIG profile", "1g.10gb"),
    r"^(?!group:)[^\s<>\"*,\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]+"
    r"(?!\n)$": PatternWords(
        'an address, or a name without spaces, <, >, ", * and ,', "alice@example.org"
    ),
    r"^[a-z_][a-z0-9_-]{0,31}(?!\n)$": PatternWords(
        "an account: at most 32 of a-z, 0-9, _ and -, a letter or _ first", "alice"
    ),
    r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$": PatternWords(
        "OWNER/REPOSITORY, as the forge names it", "team/cluster"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$": PatternWords(
        "at most 63 of letters, digits, ., _ and -, a letter or digit first", "chat-key"
    ),
    r"^[0-9]+(-[0-9]+(:[0-9]+)?)?(,[0-9]+(-[0-9]+(:[0-9]+)?)?)*(?!\n)$": PatternWords(
        "numbers and ranges of elements, with commas", "0-9,12,20-30:5"
    ),
    r"^(?!\.{1,2}$)[A-Za-z0-9_.-]+(?!\n)$": PatternWords(
        "a file name of letters, digits, _, . and -", "complete.json"
    ),
    r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*(?!\n)$": PatternWords(
        f"{_PATH}, of letters, digits, _, . and -", "runs/train"
    ),
    r"^(?!\.{1,2}(/|$))[A-Za-z0-9_.*?{}=+-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9_.*?{}=+-]+)*(?!\n)$": (
        PatternWords(f"{_PATH}, in which * and ? are wildcards", "step-*.pt")
    ),
    r"^sha256:[0-9a-f]{64}(?!\n)$": PatternWords(
        f"sha256: and {_DIGEST}, as `muster submit --code` writes it", f"sha256:{'0f' * 32}"
    ),
    r"^((https|ssh|file)://[!-~]+|[A-Za-z0-9_.][A-Za-z0-9_.-]*@[A-Za-z0-9.-]+:[!-~]+)(?!\n)$": (
        PatternWords(
            "the address of a git repository, with https://, ssh:// or file://, or USER@HOST:PATH",
            "https://git.example.org/team/code.git",
        )
    ),
    r"^(?!\.{1,2}(/|$))[^\x00-\x1f\x7f/]+(/(?!\.{1,2}(/|$))[^\x00-\x1f\x7f/]+)*(?!\n)$": (
        PatternWords(f"{_PATH}: a folder below that of the code", "experiments/one")
    ),
    r"^([0-9a-f]{40}|[0-9a-f]{64})(?!\n)$": PatternWords(
        "the whole id of a commit, 40 or 64 hexadecimal digits, as `git rev-parse` prints it",
        "1f0c7a1e0a3d5b1c9f2e4d6a8b0c2e4f6a8b0c2e",
    ),
    r"^[0-9a-f-]{1,64}(?!\n)$": PatternWords(
        "an id of hexadecimal digits and -", "8ee6fb2c-3bf6-4b7e-9a3b-58c4ce1d0a44"
    ),
    r"^[0-9a-f]{64}(?!\n)$": PatternWords(f"{_DIGEST}, as sha256sum prints them", "0f" * 32),
    r"^/[^\x00-\x1f\x7f]*(?!\n)$": PatternWords("a path from / on", "/home/ada/project"),
    r"^[^\x00]*$": PatternWords("no null character in it", "--epochs=3"),
    r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})(?!\n)$": PatternWords(
        "a date and time with Z for UTC, or with its distance from UTC", "2026-12-24T18:00:00Z"
    ),
    r"^[^\x00\n]*[^\x00\n/](?!\n)$": PatternWords(
        "the path of a file, on one line and without / at its end", "logs/%x-%j.out"
    ),
    r"^[A-Za-z0-9_/][A-Za-z0-9_.+/@:=~-]*(?!\n)$": PatternWords(
        "one environment module, without spaces; each further one is another item", "cuda/12.4"
    ),
    r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?\.[1-9][0-9]{0,6}\.[0-9a-f]{16}(?!\n)$": PatternWords(
        "NAME.RUN.HASH, the `key` that `muster job NAME -o json` shows", f"train.1.{'0f' * 8}"
    ),
    r"^(?!\.{1,2}(/|$))[A-Za-z0-9_.=+-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9_.=+-]+)*(?!\n)$": (
        PatternWords(f"{_PATH}, of letters, digits, _, ., =, + and -", "imagenet/train")
    ),
    r"^(?!\.{1,2}(/|$))[A-Za-z0-9_.={}+-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9_.={}+-]+)*(?!\n)$": (
        PatternWords(
            f"{_PATH}, of letters, digits, _, ., =, + and -, and {{job}} or {{index}}",
            "runs/{job}/{index}",
        )
    ),
    r"^/[^\x00\n]*$": PatternWords("a path from / on, on one line", "/data"),
    r"^/[^\x00\n]*(?!\n)$": PatternWords("a path from / on, on one line", "/data"),
    r"^[A-Z][A-Za-z]+/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$": PatternWords(
        "KIND/NAME of an object", "Job/big-training"
    ),
    r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?!\n)$": PatternWords(
        "a bucket: 3 to 63 of a-z, 0-9, . and -, a letter or digit at either end", "datasets"
    ),
    r"^-----BEGIN CERTIFICATE-----\n": PatternWords(
        "certificates in PEM, the first line being that of a certificate",
        "-----BEGIN CERTIFICATE-----\n",
    ),
    r"^https?://[A-Za-z0-9.:\[\]-]+/?(?!\n)$": PatternWords(
        "http:// or https:// and a host, with its port if it is another, and no path",
        "https://s3.example.org",
    ),
    r"^[a-z0-9-]{1,64}(?!\n)$": PatternWords("a region: a-z, 0-9 and -", "eu-central-1"),
    r"^[^\s\x00]+(?!\n)$": PatternWords("one word, without spaces", "server:/export/data"),
}
_REFUSAL = re.compile(r"""matching regex (?P<mark>['"])(?P<pattern>.*)(?P=mark)$""", re.DOTALL)


def of(pattern: str) -> PatternWords | None:
    """Return the words for a pattern; None if it has none."""
    return _WORDS.get(pattern)


@functools.cache
def _shown() -> dict[str, str]:
    """Return the requirement of each pattern, by the pattern as msgspec shows it."""
    return {repr(pattern)[1:-1]: words.requirement for pattern, words in _WORDS.items()}


def reworded(refusal: str) -> str:
    """Return msgspec's sentence about a text, with words in place of its pattern."""
    found = _REFUSAL.search(refusal)
    if found is None:
        return refusal
    meant = _shown().get(found["pattern"], "another form")
    return f"{refusal[: found.start()].rstrip()}: {meant}"
