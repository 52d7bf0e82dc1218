"""What is written down of a command line holds no secret."""

import pytest

from reconciler.server.interactive import argument_redaction


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["nvidia-smi", "-q"], "nvidia-smi -q"),
        (["env", "HF_TOKEN=hf_abc", "A=1"], "env HF_TOKEN=*** A=1"),
        (["mysql", "--password", "hunter2", "db"], "mysql --password *** db"),
        (["tool", "--api-key=hunter2"], "tool --api-key=***"),
        (["git", "clone", "https://ada:hunter2@host/x"], "git clone https://***@host/x"),
        (["curl", "-H", "Authorization: Bearer hunter2"], "curl -H Authorization: ***"),
        (["sh", "-c", "export SECRET=hunter2; run"], "sh -c export SECRET=*** run"),
        (["tool", "--token", "--verbose"], "tool --token --verbose"),
    ],
)
def test_values_of_secrets_are_hidden(argv: list[str], shown: str) -> None:
    found = argument_redaction.redacted(argv)
    assert found == shown
    assert "hunter2" not in found


def test_a_long_command_line_is_cut() -> None:
    found = argument_redaction.redacted(["x" * 500])
    assert len(found) == argument_redaction.SHOWN_MAX
    assert found.endswith("…")
