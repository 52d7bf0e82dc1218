"""Host lists: what they stand for, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.values import hostlists
from reconciler.model.values.hostlists import HostListError

TABLE = [
    ("a", ["a"]),
    ("a,b", ["a", "b"]),
    ("a, b", ["a", "b"]),
    ("gpu[001-003]", ["gpu001", "gpu002", "gpu003"]),
    ("gpu[1-2,9]", ["gpu1", "gpu2", "gpu9"]),
    ("gpu[9-11]", ["gpu9", "gpu10", "gpu11"]),
    ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ("n[1-2].example.org", ["n1.example.org", "n2.example.org"]),
    ("b,a,b", ["b", "a"]),
]


@pytest.mark.parametrize(("text", "names"), TABLE)
def test_expand(text: str, names: list[str]) -> None:
    assert hostlists.expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            ",",
            "a,",
            "a[",
            "a]",
            "a[]",
            "a[[1]]",
            "a[2-1]",
            "a[x]",
            f"a[1-{'9' * 5000}]",
            f"a[{'9' * 5000}-{'9' * 5000}]",
            f"a{'9' * 5000}",
            "a[1-]",
            "-a",
            "a b",
            "a/b",
        ],
        *["a[1-999999999]", "a[1-1000]b[1-1000]", "a[\u0661]", "a[1-2-3]", "a\nb"],
    ],
)
def test_no_host_list(text: str) -> None:
    with pytest.raises(HostListError):
        hostlists.expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["gpu001", "gpu002", "gpu003", "gpu007"], "gpu[001-003,007]"),
        (["n1", "n2", "n10"], "n[1-2,10]"),
        (["a"], "a"),
        (["a7"], "a7"),
        ([], ""),
    ],
)
def test_fold(names: list[str], text: str) -> None:
    assert hostlists.fold(names) == text


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,4}[a-z0-9])?[0-9]{0,4}", fullmatch=True)


@given(st.lists(NAMES, min_size=1, max_size=30))
def test_fold_and_expand(names: list[str]) -> None:
    assert sorted(hostlists.expand(hostlists.fold(names))) == sorted(set(names))


@given(st.text("a1[]-, 0", max_size=12))
def test_anything_is_a_list_or_an_error(text: str) -> None:
    try:
        names = hostlists.expand(text)
    except HostListError:
        return
    assert names
    assert set(hostlists.expand(hostlists.fold(names))) == set(names)


def test_digits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(hostlists.HostListError, match="is not a number or a range"):
        hostlists.expand("gpu[²-3]")


def test_many_ranges_in_one_bracket_are_refused_before_they_are_expanded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expanded = []
    expand_range = hostlists._expand_range

    def counted(text: str, item: str) -> list[str]:
        expanded.append(item)
        return expand_range(text, item)

    monkeypatch.setattr(hostlists, "_expand_range", counted)
    with pytest.raises(hostlists.HostListError, match="more than 100000 hosts"):
        hostlists.expand(f"n[{','.join(['1-99999'] * 500)}]")
    assert len(expanded) == 2


def test_a_list_is_bounded_also_where_names_come_again() -> None:
    with pytest.raises(hostlists.HostListError, match="more than 100000 hosts"):
        hostlists.expand(",".join(["n[1-60000]"] * 2))
    assert hostlists.expand("a,a,b") == ["a", "b"]


@pytest.mark.parametrize("prefix", ["", "n", "12", "0" * 30, "9" * 40])
def test_names_with_very_long_numbers_fold_to_what_expands_again(prefix: str) -> None:
    names = [f"{prefix}{number:022d}" for number in (2, 3, 4, 9)]
    assert hostlists.expand(hostlists.fold_in_order(names)) == names
    assert sorted(hostlists.expand(hostlists.fold(names))) == sorted(names)
