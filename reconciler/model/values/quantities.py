"""Amounts as people write them (``16Gi``, ``500m``, ``2h30m``), as exact integers, and back.

Text from documents and command lines comes in; integers in one base unit go out: milli-CPUs, bytes,
milli-GPUs, seconds. Formatting an amount and parsing it again gives the same amount.
"""

import re
from decimal import Decimal, InvalidOperation

from reconciler.model.values import found_values

#: Suffixes of memory amounts and what they multiply by (binary and decimal, as in Kubernetes).
MEMORY_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_BINARY = ("Pi", "Ti", "Gi", "Mi", "Ki", "")
#: Longer amounts are rounded for people.
_SHORT_CHARACTERS_MAX = 7
#: Units of durations, largest first, in seconds.
DURATION_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}

#: The largest amount accepted in any unit: it must fit in a signed 64-bit column.
LARGEST_AMOUNT = 2**62
#: The most that a job may ask for, or all nodes have, in all: two of these add up in a column.
LARGEST_TOTAL = 2**61

CPU_PATTERN = r"^[0-9]+(\.[0-9]{1,3})?$|^[0-9]+m$"
MEMORY_PATTERN = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
DURATION_PATTERN = (
    r"^([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$|^[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}$"
    r"|^[0-9]+(:[0-9]{1,2}){1,2}$|^[0-9]+$"
)

_MEMORY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)$")
#: An amount with its unit in words, as in ``10 mins`` and ``4GB``.
_IN_WORDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")
#: How people write units of durations, in small letters.
_DURATION_WORDS = {
    "w": ("w", "wk", "wks", "week", "weeks"),
    "d": ("d", "day", "days"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}
_DURATION = re.compile(r"^(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$", re.ASCII)
_CLOCK = re.compile(r"^(?:(\d+)-)?(\d+)(?::(\d{1,2}))?(?::(\d{1,2}))?$", re.ASCII)


#: A number as people write it: no exponent, no sign, no digits of other scripts.
_NUMBER = re.compile(r"^[0-9]+(?:\.[0-9]+)?$")
#: Longer numbers are nobody's; arithmetic would round them.
_CHARACTERS_MAX = 26


class QuantityError(ValueError):
    """Text that is not an amount of the expected kind; the message says what was expected."""


def _bounded(amount: Decimal, written: object, unit: str) -> int:
    # Compared before it becomes an integer: Python makes none of thousands of digits.
    if amount > LARGEST_AMOUNT:
        what = "longer than anything lasts" if unit == "second" else "larger than any machine"
        raise QuantityError(
            f"{found_values.quote(written)} is {what}; expected at most 2^62 {unit}s"
        )
    whole = int(amount)
    if whole != amount:
        raise QuantityError(f"{found_values.quote(written)} is finer than one {unit}")
    return whole


def _decimal(text: str, written: object, expected: str) -> Decimal:
    if isinstance(written, str) and (len(text) > _CHARACTERS_MAX or not _NUMBER.match(text)):
        raise QuantityError(f"{found_values.quote(written)} is not {expected}")
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise QuantityError(f"{found_values.quote(written)} is not {expected}") from None
    if not number.is_finite() or number < 0:
        raise QuantityError(f"{found_values.quote(written)} is not {expected}")
    return number


def _amount_in_words(written: object) -> re.Match[str] | None:
    """Return number and unit of an amount that somebody may have written."""
    text = str(written).strip()
    return _IN_WORDS.fullmatch(text) if len(text) <= _CHARACTERS_MAX else None


def suggest_memory(written: object) -> str:
    """Return ``; did you mean 4G or 4Gi?`` for an amount such as ``4GB``, or an empty string."""
    match = _amount_in_words(written)
    unit = match[2].lower() if match else ""
    letter, rest = unit[:1], unit[1:]
    if match is None or letter not in tuple("kmgtp") or rest not in ("", "b", "i", "ib"):
        return ""
    binary = f"{match[1]}{letter.upper()}i"
    decimal = f"{match[1]}{'k' if letter == 'k' else letter.upper()}"
    return f"; did you mean {binary if 'i' in rest else f'{decimal} or {binary}'}?"


def suggest_duration(written: object) -> str:
    """Return ``; did you mean 10m?`` for a duration such as ``10mins``, or an empty string."""
    text = str(written).strip()
    if len(text) > _CHARACTERS_MAX or _IN_WORDS.sub("", text):
        return ""
    parts = _IN_WORDS.findall(text)
    total = Decimal(0)
    for amount, word in parts:
        units = [unit for unit, words in _DURATION_WORDS.items() if word.lower() in words]
        if not units:
            return ""
        total += Decimal(amount) * DURATION_UNITS[units[0]]
    return f"; did you mean {format_duration(int(total))}?" if total >= 1 else ""


def suggest_cpu(written: object) -> str:
    """Return ``; did you mean 2?`` for CPUs such as ``2cores``, or an empty string."""
    match = _amount_in_words(written)
    words = ("c", "cpu", "cpus", "core", "cores")
    return f"; did you mean {match[1]}?" if match and match[2].lower() in words else ""


def parse_cpu(written: str | float) -> int:
    """Parse CPUs such as ``2``, ``0.5`` or ``500m`` to milli-CPUs."""
    text = str(written).strip()
    expected = f"a number of CPUs such as 2, 0.5 or 500m{suggest_cpu(written)}"
    if text.endswith("m"):
        return _bounded(_decimal(text[:-1], written, expected), written, "milli-CPU")
    return _bounded(_decimal(text, written, expected) * 1000, written, "milli-CPU")


def format_cpu(milli: int) -> str:
    """Format milli-CPUs as ``2`` or ``500m``."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def parse_memory(written: str | float) -> int:
    """Parse memory such as ``16Gi``, ``512M`` or plain bytes to bytes."""
    text = str(written).strip()
    expected = (
        "an amount of memory such as 16Gi, 512Mi or 1G: bytes, or a number with k, M, G, T, P, "
        "Ki, Mi, Gi, Ti or Pi"
    )
    match = _MEMORY.match(text)
    if not match or match[2] not in MEMORY_SUFFIXES:
        raise QuantityError(
            f"{found_values.quote(written)} is not {expected}{suggest_memory(written)}"
        )
    amount = _decimal(match[1], written, expected) * MEMORY_SUFFIXES[match[2]]
    return _bounded(amount.to_integral_value(), written, "byte")


def format_memory(amount_bytes: int) -> str:
    """Format bytes in the largest unit that divides them, binary units first: ``16Gi``, ``1G``,
    ``7``.
    """
    if amount_bytes == 0:
        return "0"
    for suffix in ("Pi", "Ti", "Gi", "Mi", "Ki", "P", "T", "G", "M", "k"):
        if amount_bytes % MEMORY_SUFFIXES[suffix] == 0:
            return f"{amount_bytes // MEMORY_SUFFIXES[suffix]}{suffix}"
    return str(amount_bytes)


def short_memory(amount_bytes: int) -> str:
    """Return bytes as people read them: exact if that is short, else two digits less than it."""
    exact = format_memory(amount_bytes)
    if len(exact) <= _SHORT_CHARACTERS_MAX:
        return exact
    suffix = next(one for one in _BINARY if amount_bytes >= MEMORY_SUFFIXES[one])
    return f"{100 * amount_bytes // MEMORY_SUFFIXES[suffix] / 100:g}{suffix}"


def parse_gpu(written: str | float) -> int:
    """Parse GPUs such as ``8`` or ``0.5`` to milli-GPUs."""
    expected = "a number of GPUs such as 8 or 0.5"
    return _bounded(_decimal(str(written).strip(), written, expected) * 1000, written, "milli-GPU")


def format_gpu(milli: int) -> str:
    """Format milli-GPUs as the shortest decimal number: ``8``, ``0.5``."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli / 1000:.3f}".rstrip("0")


def format_resource(index: int, amount: int) -> str:
    """Format an amount with its unit: ``8 GPUs``, ``1 CPU``, ``500m CPUs``, ``16Gi memory``.

    ``index`` is that of the resource in ``resources.RESOURCE_NAMES``.
    """
    formats = (format_cpu, format_memory, format_gpu)
    unit = ("CPUs", "memory", "GPUs")[index]
    if index != 1 and amount == 1000:
        unit = unit.removesuffix("s")
    return f"{formats[index](amount)} {unit}"


def format_hours(hours: float) -> str:
    """Format GPU-hours to a hundredth, small ones to two digits: ``312.25``, ``0.5``,
    ``0.0042``.
    """
    if 0 < hours < 0.0001:
        return "<0.0001"
    if 0 < hours < 0.1:
        return f"{hours:.2g}"
    return f"{hours:.2f}".rstrip("0").rstrip(".")


def parse_duration(written: str | float) -> int:
    """Parse a duration to seconds.

    Accepts ``90s``, ``2h30m``, ``1w``, plain seconds, and Slurm's clock forms ``minutes:seconds``,
    ``hours:minutes:seconds`` and ``days-hours[:minutes[:seconds]]``.
    """
    text = str(written).strip()
    expected = "a duration such as 90s, 2h30m or 1-12:00:00"
    if text.isascii() and text.isdigit():  # "²" is a digit too, and no number
        return _bounded(Decimal(text), written, "second")
    match = _DURATION.match(text)
    if match and text:
        parts = zip(match.groups(), DURATION_UNITS.values(), strict=True)
        return _bounded(
            sum((Decimal(part) * unit for part, unit in parts if part), Decimal(0)),
            written,
            "second",
        )
    match = _CLOCK.match(text)
    if not match:
        raise QuantityError(
            f"{found_values.quote(written)} is not {expected}{suggest_duration(written)}"
        )
    days, first, second, third = (Decimal(part or 0) for part in match.groups())
    if match[1] is not None or match[4] is not None:
        hours, minutes, seconds = first, second, third
    else:
        hours, minutes, seconds = Decimal(0), first, second
    return _bounded(((days * 24 + hours) * 60 + minutes) * 60 + seconds, written, "second")


def format_duration(seconds: int) -> str:
    """Format seconds as ``2h30m``, and zero as ``0s``."""
    if seconds == 0:
        return "0s"
    parts = []
    for suffix, size in DURATION_UNITS.items():
        if suffix == "w" and seconds % size:
            continue
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{suffix}")
    return "".join(parts)


def counted(number: float, noun: str, more: str = "", *, one: str = "", many: str = "") -> str:
    """Format a number with its noun: ``1 GPU``, ``2 GPUs``; irregular plurals are given in full.

    ``one`` and ``many`` are verbs that agree with it: ``1 node is``, ``2 nodes are``.
    """
    alone = number == 1
    shown = str(number) if isinstance(number, int) else f"{number:g}"
    words = f"{shown} {noun if alone else more or f'{noun}s'}"
    verb = one if alone else many
    return f"{words} {verb}" if verb else words
