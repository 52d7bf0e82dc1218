"""Problems as code scanning and annotations of a pull request take them."""

from reconciler.model import desired
from reconciler.operations import problemforms

PROBLEM = desired.Problem(
    rule="policy/max-gpus",
    severity="error",
    path="jobs/big.yaml",
    line=4,
    column=7,
    object="Job/big",
    field="spec",
    message="at most 1 GPU: 100%\nof a node",
)


def test_code_scanning_finds_rule_file_and_line() -> None:
    (run,) = problemforms.sarif([PROBLEM], "clusters/a")["runs"]
    assert run["tool"]["driver"]["rules"] == [{"id": "policy/max-gpus"}]
    (result,) = run["results"]
    (place,) = result["locations"]
    assert (result["ruleId"], result["level"]) == ("policy/max-gpus", "error")
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "clusters/a/jobs/big.yaml"
    assert place["physicalLocation"]["region"] == {"startLine": 4, "startColumn": 7}


def test_an_annotation_is_one_line_whatever_a_message_holds() -> None:
    (line,) = problemforms.annotations([PROBLEM], "")
    assert line.startswith("::error file=jobs/big.yaml,line=4,col=7,title=policy/max-gpus::")
    assert "100%25%0Aof a node" in line
    assert "\n" not in line
