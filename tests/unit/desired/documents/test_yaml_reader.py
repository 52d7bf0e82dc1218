"""What YAML means here, and what is refused where."""

import threading
from collections.abc import Callable

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reconciler.desired.documents import document_reader, yaml_reader

SCALARS = [
    ("1", 1),
    ("-1", -1),
    ("+7", 7),
    ("0", 0),
    ("0644", "0644"),
    ("0o17", "0o17"),
    ("0x10", "0x10"),
    ("1_000", "1_000"),
    ("1.5", 1.5),
    ("1.0", 1),
    (".5", 0.5),
    ("1e3", 1000),
    (".inf", ".inf"),
    (".nan", ".nan"),
    ("1e999", "1e999"),
    ("9" * 50, "9" * 50),
    ("1:30", "1:30"),
    ("2026-11-21", "2026-11-21"),
    ("1.2.3", "1.2.3"),
    ("true", True),
    ("False", False),
    ("yes", "yes"),
    ("no", "no"),
    ("on", "on"),
    ("off", "off"),
    ("y", "y"),
    ("~", None),
    ("null", None),
    ("", None),
    ("none", "none"),
    ("'1'", "1"),
    ('"true"', "true"),
    ("''", ""),
    ("|\n  1\n", "1\n"),
    ("text", "text"),
    ("[1, a, ~]", [1, "a", None]),
    ("{a: 1, b: {c: x}}", {"a": 1, "b": {"c": "x"}}),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_values(text: str, value: object) -> None:
    (document,) = yaml_reader.read(f"k: {text}".encode())
    found = document.value["k"]
    assert found == value
    assert type(found) is type(value)


REFUSED = [
    (b"a: 1\nb: 2\na: 3\n", "yaml-duplicate-key", 3, 1),
    (b"a:\n  b: {c: 1, c: 2}\n", "yaml-duplicate-key", 2, 13),
    (b"a:\n\tb: 1\n", "yaml-tab", 2, 1),
    (b"a: [\n", "yaml-syntax", 2, 1),
    (b"a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> ada\n", "yaml-conflict", 2, 1),
    (b"a:\n  b: 1\n=======\n  b: 3\n>>>>>>> ada\n", "yaml-conflict", 3, 1),
    (b'a: [b, "c\\0"]\n', "yaml-syntax", 1, 8),
    (b'a: 1\n"\\u0000": 1\n', "yaml-syntax", 2, 1),
    (b"a: 1\nb\n", "yaml-syntax", 3, 1),
    (b"a: !!str 1\n", "yaml-tag", 1, 4),
    (b"a: !mine x\n", "yaml-tag", 1, 4),
    (b"- &x {a: 1}\n- <<: *x\n", "yaml-merge-key", 2, 3),
    (b"1: a\n", "yaml-key", 1, 1),
    (b"true: a\n", "yaml-key", 1, 1),
    (b"a: {? [x] : y}\n", "yaml-key", 1, 7),
    (b"a: 1\nb: \xff\n", "yaml-encoding", 2, 4),
    ("a: 1".encode("utf-16"), "yaml-encoding", 1, 1),
    (b"a: *nothing\n", "yaml-syntax", 1, 4),
    (b"a: &x [*x]\n", "yaml-too-deep", 1, 4),
    (b"[" * 100_000, "yaml-too-deep", 1, 65),
    (b"- " * 3_000, "yaml-too-deep", 1, 129),
    (b"a: b\n" * 900_000, "yaml-too-large", 0, 0),
    (b"[" + b"a," * 300_000 + b"]", "yaml-expands-too-far", 1, 1),
    (b"[" + b"a," * 600_000 + b"]", "yaml-too-large", 0, 0),
    (b"a: \x01", "yaml-syntax", 1, 4),
    (b"a: 1\nb: x\x00\n", "yaml-syntax", 2, 5),
    ("\ufeffa: 1\né: \x7f\n".encode(), "yaml-syntax", 2, 4),
]


@pytest.mark.parametrize(("data", "rule", "line", "column"), REFUSED)
def test_refused(data: bytes, rule: str, line: int, column: int) -> None:
    with pytest.raises(yaml_reader.YamlError) as caught:
        yaml_reader.read(data)
    assert (caught.value.rule, caught.value.line, caught.value.column) == (rule, line, column)


@pytest.mark.parametrize(
    "text",
    ["TOKEN: 1\nTOKEN: 2\n", "48121: 1\n", "a: !TOKEN x\n", "a: *TOKEN\n", "a: &TOKEN b: c\n"],
)
def test_a_message_quotes_nothing_of_the_file(text: str) -> None:
    with pytest.raises(yaml_reader.YamlError) as caught:
        yaml_reader.read(text.encode())
    assert not any(word in str(caught.value) for word in ("TOKEN", "48121"))


def test_a_key_that_is_refused_is_found() -> None:
    for text, found in (("TOKEN: 1\nTOKEN: 2\n", '"TOKEN"'), ("48121: 1\n", '"48121"')):
        with pytest.raises(yaml_reader.YamlError) as caught:
            yaml_reader.read(text.encode())
        assert caught.value.found == found


def test_what_only_looks_like_a_nul_is_read() -> None:
    (document,) = yaml_reader.read(b"script: |\n  printf 'a\\0' \\x00\nb: 'c\\0'\n")
    assert document.value == {"script": "printf 'a\\0' \\x00\n", "b": "c\\0"}


def test_a_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(yaml_reader.YamlError) as caught:
        yaml_reader.read("\n".join(lines).encode())
    assert caught.value.rule == "yaml-expands-too-far"


@pytest.mark.parametrize("read", [yaml_reader.read, yaml_reader.positions])
@pytest.mark.parametrize("many", ["[{}]", "{{a: [{}], b: 1}}"])
def test_text_that_aliases_repeat_counts_each_time(
    many: str, read: Callable[[bytes], object]
) -> None:
    text = "x" * (yaml_reader.TEXT_CHARACTERS_MAX // 20)
    for times, fits in ((18, True), (20, False)):
        data = f'first: &a "{text}"\nmore: {many.format(",".join(["*a"] * times))}\n'.encode()
        if fits:
            assert read(data)
            continue
        with pytest.raises(yaml_reader.YamlError) as caught:
            read(data)
        assert caught.value.rule == "yaml-expands-too-far"


def test_deep_nesting_does_no_harm_in_a_thread() -> None:
    ended = []

    def read() -> None:
        for data in (b"[" * 4_900, b"{a: " * 4_900, b"- " * 2_000):
            with pytest.raises(yaml_reader.YamlError):
                yaml_reader.read(data)
        ended.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert ended


def test_documents_and_byte_order_mark() -> None:
    data = b"\xef\xbb\xbf# first\na: 1\n---\n---\n~\n---\n# x\nb: &x [1]\nc: *x\n...\n"
    found = yaml_reader.read(data)
    assert [(item.value, item.line) for item in found] == [({"a": 1}, 2), ({"b": [1], "c": [1]}, 8)]
    assert yaml_reader.read(b"") == []


def test_a_script_is_no_tag() -> None:
    data = b"s: |\n  if [ ! -f x ]; then !! ; fi\nt: '!x'\n"
    assert yaml_reader.read(data)[0].value["t"] == "!x"


def test_positions() -> None:
    data = b"a: 1\n---\nb:\n  - c: 2\n    d: [x, y]\n"
    first, second = yaml_reader.positions(data)
    assert first.of(("a",)) == yaml_reader.LineColumn(1, 4)
    assert second.of(("b", 0, "d", 1)) == yaml_reader.LineColumn(5, 12)
    assert second.of(("b", 0, "c"), key=True) == yaml_reader.LineColumn(4, 5)
    assert second.of(("b", 0, "missing", "x")) == yaml_reader.LineColumn(4, 5)
    assert yaml_reader.dotted(("b", 0, "d", 1)) == "b[0].d[1]"


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
# PyYAML writes `1e3` without quotes, as YAML 1.1 has no such number.
TEXT = TEXT.filter(lambda text: isinstance(yaml_reader.scalar(text), str))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT.filter(lambda key: key != "<<"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES.filter(lambda value: value is not None))
def test_what_others_write_is_read(value: object) -> None:
    for style in (True, False):
        data = yaml.safe_dump(value, default_flow_style=style, allow_unicode=True)
        assert [item.value for item in yaml_reader.read(data.encode())] == [value]


@given(st.binary(max_size=60) | st.text("a:-[]{}&*!|>'\" \n\t#?,<%@", max_size=40).map(str.encode))
def test_anything_is_read_or_refused(data: bytes) -> None:
    try:
        found = yaml_reader.read(data)
    except yaml_reader.YamlError:
        return
    assert len(yaml_reader.positions(data)) == len(found)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"a: [b\nc: d\n", "the [ of line 1 is not closed, or a comma is missing"),
        (b"a: 1\nb: {c: d\n", "the { of line 2 is not closed, or a comma is missing"),
        (b'a: "x\nb: 1\n', "the quote of line 1 is not closed"),
        (b"a: 1\n b: 2\n", "no field can stand here: quote a text that has a colon in it"),
        (b"a: 1\nb\n", "the : behind the field of line 2 is missing"),
        (b"a: @x\n", "a value can't begin so: quote it"),
        (b"a:\n  - x\n  b: 1\n", "a list item (- VALUE) is expected here"),
        (b"a:\n  b: 1\n c: 2\n", "a field is expected here"),
    ],
)
def test_a_text_that_is_no_yaml_is_explained_in_plain_words(data: bytes, told: str) -> None:
    error = document_reader.read(data).error
    assert error is not None
    assert error.message.startswith(told)
