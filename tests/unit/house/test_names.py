"""Names: one thing, one name, and each name once."""

from reconciler import package_data
from tests.unit.house import measures

ROOT = package_data.checkout()
_FOR_OTHERS = "the command or the server may not import the module that defines it"
_FIXTURE = "pytest finds a fixture by its name in the module of the test"
#: Imports and assignments under another name, each with its reason.
ALIASES = {
    "Documents = object_changes.Documents": _FOR_OTHERS,
    "SubmissionValidator = submission_checks.SubmissionValidator": _FOR_OTHERS,
    "ReadFiles = parallel_reader.Read": _FOR_OTHERS,
    "Known = submission_checks.Known": _FOR_OTHERS,
    "Run = trace_results.Run": _FOR_OTHERS,
    "ReplayOptions = trace_replay.Options": _FOR_OTHERS,
    "BEGIN = trace_replay.BEGIN": _FOR_OTHERS,
    "GPU = fair_share.GPU": "rebuilt with the scheduler",
    "make = test_provenance.make": _FIXTURE,
    "keys = test_provenance.keys": _FIXTURE,
    "one = test_provenance.one": _FIXTURE,
}
#: Module names that end in "ing" and are words of the field.
GERUNDS = {"autoscaling", "batching", "draining", "finding", "flapping", "provisioning", "scoring",
           "signing", "staging"}  # fmt: skip


def test_public_classes_have_names_of_their_own() -> None:
    classes = measures.public_classes(ROOT)
    assert {name: files for name, files in classes.items() if len(files) > 1} == {}


def test_modules_and_names_of_ours_are_imported_as_they_are_called() -> None:
    found = {line.rsplit(": ", 1)[1]: line for line in measures.aliases(ROOT)}
    assert [line for text, line in found.items() if text not in ALIASES] == []
    assert set(ALIASES) <= set(found)


def test_modules_are_nouns() -> None:
    found = measures.gerunds(ROOT)
    names = {path.rsplit("/", 1)[1][:-3] for path in found}
    assert names == GERUNDS
