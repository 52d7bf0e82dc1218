"""If several options are wrong, all are told at once, and nothing is submitted."""

from pathlib import Path

import pytest

from reconciler.cli import main, terminal

WRONG = {
    "--memory=500": '--memory: found "500", without a unit. To fix: --memory 500Mi',
    "--time=0": '--time: found "0", which would end the job at once',
    "--begin=soon": "--begin: ",
    "--deadline=never": "--deadline: ",
    "--depends=afterfoo:a": "--depends afterfoo:a: unknown condition 'afterfoo'",
    "--set=nonsense": '--set: found "nonsense", expected FIELD=VALUE',
    "--env=A": '--env: found "A", expected NAME=VALUE',
    "--env=MY_TOKEN=hush": "--env: MY_TOKEN looks like a secret",
    "--export=ABSENT": "--export: ABSENT is not set here",
    "--signal=NOPE": "--signal: ",
    "--cpus=many": "--cpus: ",
}


@pytest.mark.parametrize("command", ["submit", "run"])
def test_all_that_is_wrong_is_told_at_once(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["muster", command, *WRONG, "--", "true"])
    with pytest.raises(SystemExit) as left:
        main.main()
    printed = capsys.readouterr()
    told = printed.err.splitlines()
    assert left.value.code == terminal.USAGE
    assert told[0] == f"muster: {len(WRONG)} problems; nothing was submitted"
    for begin in WRONG.values():
        assert [line for line in told if line.strip().startswith(begin)], (begin, printed.err)
    assert "hush" not in printed.err
    assert printed.out == ""
