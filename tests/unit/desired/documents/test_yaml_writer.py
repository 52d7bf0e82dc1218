"""What is written is read as the same, by every way of writing."""

import io
import json
from typing import Any

import pytest
import ruamel.yaml
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reconciler.changes import yaml_edit
from reconciler.cli import terminal
from reconciler.desired.documents import yaml_reader, yaml_writer
from reconciler.operations import discovery
from reconciler.operations.changes import job_document

#: Texts that some reader of YAML takes for something else.
AWKWARD = (
    "1e3", "1e-4", "5E-5", "1E3", "0.1e1", "1.e5", "+.5", "-1e5", "1e+5", "0e0", "+12e03", "0x10",
    "0o17", "0644", "1_000", "1.10", ".5", "5.", "-0", "null", "~", "", "yes", "no", "on", "Off",
    "true", "TRUE", "y", "n", "12:30", "12:30:45", "2026-11-27", ".inf", ".nan", "<<", "=", "- a",
    "a: b", "# c", "a #b", "'", '"', "%x", "@x", "`x", "!x", "&x", "*x", "|", ">", "[", "{", "---",
    "...", "a\nb", "a\nb\n", "\n", "a\n\n", " a", "a ", "\ta", "é", "a\u2028b", "\x85", "\ufeffa",
    "😀",
)  # fmt: skip
#: All that a document may hold: no NUL, no half of a pair, no control characters but these.
TEXTS = st.sampled_from(AWKWARD) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"], include_characters="\t\n\x85")
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def read(text: str) -> Any:
    (one,) = yaml_reader.read(text.encode())
    return one.value


@given(VALUES)
def test_what_is_written_is_read_as_the_same(value: Any) -> None:
    if isinstance(value, dict | list) and "<<" in str(value):
        return
    for is_ascii in (False, True):
        assert read(yaml_writer.yaml_text([value], is_ascii=is_ascii)) == [value]


@pytest.mark.parametrize("text", AWKWARD)
def test_other_readers_read_the_same_text(text: str) -> None:
    written = yaml_writer.yaml_text({"a": text})
    assert yaml.safe_load(written) == {"a": text}
    assert ruamel.yaml.YAML(typ="safe").load(io.StringIO(written)) == {"a": text}


@pytest.mark.parametrize("text", AWKWARD)
def test_arguments_reach_the_program_as_they_were_typed(text: str) -> None:
    """A learning rate of 1e-4 used to be refused as a number."""
    options = job_document.JobOptions("lr", ("train", "--lr", text), environment={"LR": text})
    spec = read(job_document.job_text(options))["spec"]
    assert spec["command"] == ["train", "--lr", text]
    assert spec["environment"] == {"LR": text}
    owned = read(job_document.owned(job_document.job_text(options), "1e5"))["spec"]
    assert (owned["owner"], owned["command"]) == ("1e5", ["train", "--lr", text])


@pytest.mark.parametrize("text", AWKWARD)
def test_output_for_scripts_is_read_as_the_same(text: str) -> None:
    assert read(terminal.document_text({"a": text}, is_yaml=True)) == {"a": text}
    assert json.loads(terminal.document_text({"a": text}, is_yaml=False)) == {"a": text}


# an edit refuses ends of lines that YAML alone knows
@pytest.mark.parametrize("text", [one for one in AWKWARD if not set("\n\x85") & set(one)])
def test_edits_write_what_they_say(text: str) -> None:
    whole = job_document.job_text(job_document.JobOptions("lr", ("true",)))
    try:
        edited = yaml_edit.set_fields(whole, "Job", "lr", ((("spec", "owner"), text),))
    except yaml_edit.EditError:
        pytest.fail(f"{text!r} can't be written")
    assert read(edited)["spec"]["owner"] == text


@pytest.mark.parametrize("name", ["1e5", "0644", "no"])
def test_names_and_labels_of_machines_stay_text(name: str) -> None:
    node = discovery.DiscoveredNode(name, 4, 2**33, labels={"fw": "1e-4", "1e3": name})
    written = discovery.text(discovery.pools([node]))
    spec = read(written)["spec"]
    assert (spec["hosts"], spec["labels"]) == (name, {"1e3": name, "fw": "1e-4"})
