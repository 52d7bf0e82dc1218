"""Host lists in the folded form of Slurm and pdsh: ``gpu[001-128,130]``, ``a1,b[2-3]``.

A list of patterns comes in, names in the order written come out, and names fold back into the
shortest list. Leading zeros are kept; an expansion is bounded so that no pattern exhausts memory.
"""

import re
from collections.abc import Iterable

from reconciler.model.values import found_values

#: The most names that one host list may expand to.
HOSTS_MAX = 100_000
#: The longest name of a host (RFC 1123).
NAME_CHARACTERS_MAX = 253
#: The most digits of a number in brackets.
DIGITS_MAX = 18

_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")
# of more digits the first belong to the prefix: no number in brackets has more
_TRAILING_NUMBER = re.compile(rf"^(.*?)(\d{{1,{DIGITS_MAX}}})$")


class HostListError(ValueError):
    """Text that is not a host list; the message says where it goes wrong."""


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
            if depth > 1:
                raise HostListError(
                    f"{found_values.quote(text)}: brackets inside brackets at {position}"
                )
        elif character == "]":
            depth -= 1
            if depth < 0:
                raise HostListError(f"{found_values.quote(text)}: `]` without `[` at {position}")
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth:
        raise HostListError(f"{found_values.quote(text)}: `[` is never closed")
    parts.append(text[start:])
    return parts


def _is_number(text: str) -> bool:
    """Return True if a text is digits from 0 to 9. Python's ``isdigit`` accepts others as well."""
    return text.isascii() and text.isdigit()


def _expand_range(text: str, item: str) -> list[str]:
    low, separator, high = item.partition("-")
    if not _is_number(low) or (separator and not _is_number(high)):
        raise HostListError(
            f"{found_values.quote(text)}: {found_values.quote(item)} is not a number or a range "
            "such as 001-128"
        )
    if len(low) > DIGITS_MAX or len(high) > DIGITS_MAX:
        raise HostListError(
            f"{found_values.quote(text)}: a number has more than {DIGITS_MAX} digits"
        )
    if not separator:
        return [low]
    first, last = int(low), int(high)
    if last < first:
        raise HostListError(
            f"{found_values.quote(text)}: the range {found_values.quote(item)} runs backwards"
        )
    if last - first >= HOSTS_MAX:
        raise HostListError(
            f"{found_values.quote(text)}: the range {found_values.quote(item)} has more than "
            f"{HOSTS_MAX} hosts"
        )
    width = len(low) if low.startswith("0") or len(low) == len(high) else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]


def _expand_one(text: str, pattern: str) -> list[str]:
    names = [""]
    rest = pattern
    while rest:
        head, bracket, tail = rest.partition("[")
        names = [name + head for name in names]
        if not bracket:
            break
        inside, _, rest = tail.partition("]")
        choices: list[str] = []
        for item in inside.split(","):
            choices += _expand_range(text, item.strip())
            if len(choices) > HOSTS_MAX:
                raise HostListError(f"{found_values.quote(text)}: more than {HOSTS_MAX} hosts")
        if len(names) * len(choices) > HOSTS_MAX:
            raise HostListError(f"{found_values.quote(text)}: more than {HOSTS_MAX} hosts")
        names = [name + choice for name in names for choice in choices]
    return names


def is_name(text: str) -> bool:
    """Return True if a text can be a node's name in a host list."""
    return len(text) <= NAME_CHARACTERS_MAX and _NAME.fullmatch(text) is not None


def expand(text: str) -> list[str]:
    """Return the names in a host list, in the order written, each once.

    Raises:
        HostListError: unbalanced brackets, a range that runs backwards, a name that no host can
            have, or more than ``HOSTS_MAX`` names.
    """
    names: dict[str, None] = {}
    count = 0
    for part in _split(text):
        pattern = part.strip()
        if not pattern:
            raise HostListError(f"{found_values.quote(text)}: an empty name")
        expanded = _expand_one(text, pattern)
        count += len(expanded)  # a name that comes again counts again: it costs as much
        if count > HOSTS_MAX:
            raise HostListError(f"{found_values.quote(text)}: more than {HOSTS_MAX} hosts")
        for name in expanded:
            if len(name) > NAME_CHARACTERS_MAX:
                raise HostListError(
                    f"{found_values.quote(name)} has {len(name)} characters; a host's name has "
                    "at most "
                    f"{NAME_CHARACTERS_MAX}"
                )
            if not is_name(name):
                raise HostListError(
                    f"{found_values.quote(text)}: {found_values.quote(name)} is not a host name"
                )
            names[name] = None
    return list(names)


def fold_in_order(names: Iterable[str]) -> str:
    """Return a host list that :func:`expand` turns into the same names in the same order."""
    parts: list[list[str]] = []
    for name in names:
        after = _following(parts[-1][-1]) if parts else ""
        if name == after:
            parts[-1].append(name)
        else:
            parts.append([name])
    return ",".join(fold(part) for part in parts)


def _following(name: str) -> str:
    """Return the name with the next number, as long as it has as many digits."""
    match = _TRAILING_NUMBER.match(name)
    if not match:
        return ""
    text = f"{int(match[2]) + 1:0{len(match[2])}d}"
    return match[1] + text if len(text) == len(match[2]) else ""


def fold_counts(counts: Iterable[int]) -> str:
    """Format numbers as Slurm does: ``8(x3),4``."""
    runs: list[tuple[int, int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1] = (count, runs[-1][1] + 1)
        else:
            runs.append((count, 1))
    return ",".join(f"{n}(x{times})" if times > 1 else f"{n}" for n, times in runs)


def expand_counts(text: str) -> list[int]:
    """Parse numbers that :func:`fold_counts` has formatted."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        count, _, times = part.rstrip(")").partition("(x")
        found += [int(count)] * int(times or 1)
    return found


def fold(names: Iterable[str]) -> str:
    """Return the shortest host list for ``names``: runs of numbers with one prefix are folded."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    names = list(dict.fromkeys(names))
    # gpu100 goes with gpu099: filled up with zeros to as many digits
    padded = {
        (match[1], len(match[2]))
        for name in names
        if (match := _TRAILING_NUMBER.match(name)) and match[2].startswith("0") and match[2] != "0"
    }
    for name in names:
        match = _TRAILING_NUMBER.match(name)
        if not match:
            plain.append(name)
            continue
        digits = match[2]
        width = len(digits) if (match[1], len(digits)) in padded else 0
        groups.setdefault((match[1], width), []).append(int(digits))
    folded = list(plain)
    for (prefix, width), numbers in groups.items():
        ranges: list[tuple[int, int]] = []
        for number in sorted(numbers):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        texts = [
            f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}"
            for low, high in ranges
        ]
        if len(numbers) == 1:
            folded.append(prefix + texts[0])
        else:
            folded.append(f"{prefix}[{','.join(texts)}]")
    return ",".join(folded)
