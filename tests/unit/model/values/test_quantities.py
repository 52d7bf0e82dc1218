"""Amounts, durations, host lists and times: what is written, what it means, and back."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.values import quantities
from reconciler.model.values.quantities import QuantityError

CPUS: list[tuple[str | float, int]] = [
    (2, 2000),
    ("2", 2000),
    (0.5, 500),
    ("500m", 500),
    ("0.001", 1),
    (0, 0),
]
MEMORIES: list[tuple[str | int, int]] = [
    (7, 7),
    ("16Gi", 16 * 2**30),
    ("1.5Ki", 1536),
    ("1G", 10**9),
    ("2k", 2000),
    ("3Pi", 3 * 2**50),
]
DURATIONS: list[tuple[str | int, int]] = [
    (90, 90),
    ("90", 90),
    ("90s", 90),
    ("2h30m", 9000),
    ("1w", 604_800),
    ("1d12h", 129_600),
    ("90:30", 5430),
    ("1:00:00", 3600),
    ("1-12", 129_600),
    ("1-12:30", 131_400),
    ("1-12:00:01", 129_601),
    ("0s", 0),
]


@pytest.mark.parametrize(("written", "milli"), CPUS)
def test_cpu(written: str | float, milli: int) -> None:
    assert quantities.parse_cpu(written) == milli


@pytest.mark.parametrize(("written", "amount"), MEMORIES)
def test_memory(written: str | int, amount: int) -> None:
    assert quantities.parse_memory(written) == amount


@pytest.mark.parametrize(("written", "seconds"), DURATIONS)
def test_duration(written: str | int, seconds: int) -> None:
    assert quantities.parse_duration(written) == seconds


#: More digits than Python makes an integer of.
ENDLESS = "9" * 5000


@pytest.mark.parametrize(
    "written",
    [
        *("", "x", "-1", "1e999", "nan", "0.0001", "5mm", "99" * 20),
        *("1_0", "+1", "1E999999999", "\u0663", ENDLESS, f"{ENDLESS}m", f"0.{ENDLESS}"),
    ],
)
def test_no_cpu(written: str) -> None:
    with pytest.raises(QuantityError):
        quantities.parse_cpu(written)


@pytest.mark.parametrize("written", ["", "x", "-1", "1Xi", "1 Gi", "9" * 30, "1e3", f"{ENDLESS}Gi"])
def test_no_memory(written: str) -> None:
    with pytest.raises(QuantityError):
        quantities.parse_memory(written)


@pytest.mark.parametrize(
    "written",
    [
        *("", "x", "-1", "5x", "1h2h", "1.5h", ":30", "1-", "9" * 30, "\u0663:30"),
        *(ENDLESS, f"{ENDLESS}s", f"{ENDLESS}-1", f"1-{ENDLESS}", f"{ENDLESS}:00", f"1h{ENDLESS}s"),
    ],
)
def test_no_duration(written: str) -> None:
    with pytest.raises(QuantityError):
        quantities.parse_duration(written)


@pytest.mark.parametrize("parse", [quantities.parse_cpu, quantities.parse_duration])
def test_a_message_repeats_no_more_than_a_line(parse: Callable[[str], int]) -> None:
    with pytest.raises(QuantityError) as caught:
        parse(ENDLESS)
    assert len(str(caught.value)) < 200


AMOUNTS = st.integers(0, quantities.LARGEST_AMOUNT)


@given(AMOUNTS)
def test_cpu_there_and_back(milli: int) -> None:
    assert quantities.parse_cpu(quantities.format_cpu(milli)) == milli


@given(AMOUNTS | st.integers(0, 2**12).map(lambda n: n * 2**30))
def test_memory_there_and_back(amount: int) -> None:
    assert quantities.parse_memory(quantities.format_memory(amount)) == amount


@given(st.integers(0, 10**9))
def test_gpu_there_and_back(milli: int) -> None:
    assert quantities.parse_gpu(quantities.format_gpu(milli)) == milli


@given(AMOUNTS)
def test_duration_there_and_back(seconds: int) -> None:
    assert quantities.parse_duration(quantities.format_duration(seconds)) == seconds


@given(st.text(max_size=12))
def test_anything_is_an_amount_or_an_error(text: str) -> None:
    for parse in (
        quantities.parse_cpu,
        quantities.parse_memory,
        quantities.parse_gpu,
        quantities.parse_duration,
    ):
        try:
            amount = parse(text)
        except QuantityError:
            continue
        assert 0 <= amount <= quantities.LARGEST_AMOUNT


@pytest.mark.parametrize(
    ("suggest", "written", "hint"),
    [
        (quantities.suggest_memory, "4GB", "4G or 4Gi"),
        (quantities.suggest_memory, "4gb", "4G or 4Gi"),
        (quantities.suggest_memory, "512 kb", "512k or 512Ki"),
        (quantities.suggest_memory, "1.5TiB", "1.5Ti"),
        (quantities.suggest_memory, "4gi", "4Gi"),
        (quantities.suggest_memory, "4 pounds", ""),
        (quantities.suggest_memory, f"{ENDLESS}GB", ""),
        (quantities.suggest_duration, "10mins", "10m"),
        (quantities.suggest_duration, "1hr", "1h"),
        (quantities.suggest_duration, "1.5h", "1h30m"),
        (quantities.suggest_duration, "2 Days 4 hours", "2d4h"),
        (quantities.suggest_duration, "30days", "30d"),
        (quantities.suggest_duration, "0.1s", ""),
        (quantities.suggest_duration, "3 months", ""),
        (quantities.suggest_duration, "", ""),
        (quantities.suggest_duration, f"{ENDLESS}mins", ""),
        (quantities.suggest_cpu, "2cores", "2"),
        (quantities.suggest_cpu, "2x", ""),
    ],
)
def test_an_amount_with_a_wrong_unit_is_answered_with_the_right_one(
    suggest: Callable[[object], str], written: str, hint: str
) -> None:
    assert suggest(written) == (f"; did you mean {hint}?" if hint else "")


@given(st.text("0123456789. GMKTbimhdswr", max_size=12))
def test_what_is_suggested_is_accepted(text: str) -> None:
    for suggest, parse in (
        (quantities.suggest_cpu, quantities.parse_cpu),
        (quantities.suggest_memory, quantities.parse_memory),
        (quantities.suggest_duration, quantities.parse_duration),
    ):
        words = suggest(text).removeprefix("; did you mean ").removesuffix("?")
        for word in filter(None, words.split(" or ")):
            parse(word)


def test_digits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(quantities.QuantityError, match="is not a duration"):
        quantities.parse_duration("²")


@pytest.mark.parametrize(
    ("parse", "written", "told"),
    [
        (quantities.parse_duration, "9" * 24 + "d", "is longer than anything lasts"),
        (quantities.parse_memory, "9" * 20 + "Ti", "is larger than any machine"),
    ],
)
def test_what_is_too_much_is_told_in_words_of_its_kind(
    parse: Callable[[str], int], written: str, told: str
) -> None:
    with pytest.raises(quantities.QuantityError, match=told):
        parse(written)


@pytest.mark.parametrize(
    ("number", "words", "told"),
    [
        (0, ("GPU",), "0 GPUs"),
        (1, ("GPU",), "1 GPU"),
        (1.0, ("CPU",), "1 CPU"),
        (1.5, ("CPU",), "1.5 CPUs"),
        (12_345_678, ("task",), "12345678 tasks"),
        (1, ("try", "tries"), "1 try"),
        (2, ("try", "tries"), "2 tries"),
    ],
)
def test_what_is_counted_is_told_in_grammar(
    number: float, words: tuple[str, ...], told: str
) -> None:
    assert quantities.counted(number, *words) == told


def test_a_verb_goes_with_the_number() -> None:
    assert quantities.counted(1, "node", one="is", many="are") == "1 node is"
    assert quantities.counted(3, "node", one="is", many="are") == "3 nodes are"


@pytest.mark.parametrize(
    ("hours", "told"),
    [
        (0.0, "0"),
        (0.00001, "<0.0001"),
        (0.0042, "0.0042"),
        (0.05, "0.05"),
        (0.5, "0.5"),
        (1.0, "1"),
        (2 / 3, "0.67"),
        (100.0, "100"),
        (312.25, "312.25"),
        (1e9, "1000000000"),
    ],
)
def test_hours_are_told_in_one_form(hours: float, told: str) -> None:
    assert quantities.format_hours(hours) == told


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (8 * 2**30, "8Gi"),
        (1536 * 2**20, "1536Mi"),
        (16 * 2**30 - 1, "15.99Gi"),
        (150_754_820_096, "140.4Gi"),
        (1023, "1023"),
    ],
)
def test_memory_for_people_is_short_and_never_more_than_there_is(amount: int, text: str) -> None:
    assert quantities.short_memory(amount) == text
