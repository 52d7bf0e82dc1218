"""``python -m tests.fuzz TARGET``: run a target on inputs that atheris makes up.

What reached new code is kept in the corpus folder, so a run that was ended goes on where it was.
Ends with status 1 at the first input that raises, or that takes more than a second of the
processor; the input is left in the folder of findings, and ``--input`` runs it again.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: The processor time that one input may take. Wall time would depend on what else runs.
CPU_S_MAX = 1.0
#: Longer inputs find nothing that shorter ones don't, and are slow.
INPUT_BYTES_MAX = 4096


def options(arguments: list[str]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time (0)")
    parser.add_argument("--runs", type=int, default=-1, help="how many inputs at most (any number)")
    parser.add_argument(
        "--corpus", type=Path, default=Path("lab/fuzz"), help="where inputs are kept (lab/fuzz)"
    )
    parser.add_argument("--input", type=Path, help="run this input alone, without atheris")
    return parser.parse_args(arguments)


def _run_one(target: str, data: bytes) -> int:
    """Run one input. Return 1 if it takes too long."""
    from tests.fuzz import targets

    began = time.process_time()
    targets.TARGETS[target](data)
    took_s = time.process_time() - began
    sys.stdout.write(f"{took_s:.2f} s of the processor for {len(data)} bytes\n")
    return int(took_s > CPU_S_MAX)


def _check_time(target: str, data: bytes) -> None:
    """Run an input that seemed slow again, in a process without instruments.

    Raises:
        AssertionError: it is slow there too.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        command = [sys.executable, "-m", "tests.fuzz", target, f"--input={file.name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)


def main(arguments: list[str]) -> int:
    """Fuzz one target."""
    given = options(arguments)
    if given.input is not None:
        return _run_one(given.target, given.input.read_bytes())
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["agents", "reconciler"]):
        from tests.fuzz import targets
    if given.target not in targets.TARGETS:
        sys.stderr.write(f"there is no target {given.target!r}: {', '.join(targets.TARGETS)}\n")
        return 64
    run = targets.TARGETS[given.target]

    def limited(data: bytes) -> None:
        began = time.process_time()
        run(data)
        if time.process_time() - began > CPU_S_MAX:  # which tells little: it is instrumented
            _check_time(given.target, data)

    kept = given.corpus / given.target
    findings = given.corpus / "findings"
    kept.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    seeds = Path(__file__).with_name("corpus") / given.target
    flags = [f"-max_total_time={given.seconds}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=60"]
    flags += [f"-artifact_prefix={findings}/{given.target}-", "-print_final_stats=1"]
    flags.append(f"-runs={given.runs}")
    flags += [f"-seed={given.seed}"] if given.seed else []
    atheris.Setup([sys.argv[0], *flags, str(kept), str(seeds)], limited)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
