"""Problems as code scanning and annotations of a pull request take them."""

from typing import Any

import jsonschema
import msgspec

from reconciler.model import desired
from reconciler.operations.validate import formats

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
    (run,) = formats.sarif([PROBLEM], "clusters/a")["runs"]
    assert [one["id"] for one in run["tool"]["driver"]["rules"]] == ["policy/max-gpus"]
    (result,) = run["results"]
    (place,) = result["locations"]
    assert (result["ruleId"], result["level"]) == ("policy/max-gpus", "error")
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "clusters/a/jobs/big.yaml"
    assert place["physicalLocation"]["region"] == {"startLine": 4, "startColumn": 7}


def test_an_annotation_is_one_line_whatever_a_message_holds() -> None:
    (line,) = formats.annotations([PROBLEM], "")
    assert line.startswith("::error file=jobs/big.yaml,line=4,col=7,title=policy/max-gpus::")
    assert "100%25%0Aof a node" in line
    assert "\n" not in line


def must(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], **more}


TEXT = must({"text": {"type": "string", "minLength": 1}})
NUMBER = {"type": "integer", "minimum": 1}
#: Of SARIF 2.1.0 what GitHub's code scanning requires, and of what is written beside that the form.
CODE_SCANNING = must(
    {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": must(
                {
                    "tool": must(
                        {
                            "driver": must(
                                {
                                    "name": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": must(
                                            {
                                                "id": {"type": "string", "maxLength": 255},
                                                "shortDescription": TEXT,
                                                "fullDescription": TEXT,
                                                "help": TEXT,
                                            }
                                        ),
                                    },
                                }
                            )
                        }
                    ),
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {
                        "type": "array",
                        "items": must(
                            {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": TEXT,
                                "locations": {
                                    "type": "array",
                                    "minItems": 1,
                                    "items": must(
                                        {
                                            "physicalLocation": {
                                                "type": "object",
                                                "properties": {
                                                    "artifactLocation": must(
                                                        {
                                                            "uri": {
                                                                "pattern": "^[^/ ][!-~]*$",
                                                            }
                                                        }
                                                    ),
                                                    "region": must(
                                                        {"startLine": NUMBER, "startColumn": NUMBER}
                                                    ),
                                                },
                                                "required": ["artifactLocation"],
                                            }
                                        }
                                    ),
                                },
                                "partialFingerprints": must(
                                    {"primaryLocationLineHash": {"type": "string", "minLength": 1}}
                                ),
                            }
                        ),
                    },
                }
            ),
        },
    }
)


def test_code_scanning_takes_it_whatever_is_wrong_where() -> None:
    change = msgspec.structs.replace
    problems = [
        PROBLEM,
        change(PROBLEM, path="jobs/größer als groß.yaml", line=0, rule="bad-yaml", object=""),
        change(PROBLEM, path="", line=0, severity="warning", rule="needs-approval"),
    ]
    jsonschema.validate(formats.sarif(problems, ""), CODE_SCANNING)
    jsonschema.validate(formats.sarif([], ""), CODE_SCANNING)


def test_a_finding_is_the_same_one_while_its_file_grows_above_it() -> None:
    change = msgspec.structs.replace

    def marks(*problems: desired.Problem) -> list[str]:
        (run,) = formats.sarif(problems, "")["runs"]
        return [one["partialFingerprints"]["primaryLocationLineHash"] for one in run["results"]]

    lower = change(PROBLEM, line=9, message="at most 1 GPU; found 3")
    (first,) = marks(PROBLEM)
    assert marks(lower) == [first]
    assert len({*marks(PROBLEM, lower, change(PROBLEM, object="Job/other"))}) == 3
