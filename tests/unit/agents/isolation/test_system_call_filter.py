"""The filter of system calls, run by an interpreter of classic BPF as the kernel would."""

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from agents.isolation import system_call_filter
from agents.isolation.system_call_filter import ARCHITECTURES, INSTRUCTION

ALLOW, FAIL = 0x7FFF_0000, 0x0005_0000
I386, X86_64, AARCH64 = 0x4000_0003, 0xC000_003E, 0xC000_00B7


def answer(program: bytes, number: int, architecture: int) -> int:
    """What a program returns for a call."""
    call = struct.pack("=IIQ6Q", number & 0xFFFF_FFFF, architecture, 0, *[0] * 6)
    lines = list(INSTRUCTION.iter_unpack(program))
    at = loaded = 0
    for _ in range(len(lines)):
        code, if_true, if_false, operand = lines[at]
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", call, operand)
        elif code == 0x06:
            return int(operand)
        else:
            holds = loaded == operand if code == 0x15 else loaded >= operand
            assert code in {0x15, 0x35}
            at += if_true if holds else if_false
        at += 1
    raise AssertionError("a program without an end")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_is_listed_is_denied_and_nothing_else(machine: str) -> None:
    known = ARCHITECTURES[machine]
    program = system_call_filter.program_of(machine)
    for number in range(600):
        expected = FAIL | errno.EPERM if number in known.denied.values() else ALLOW
        assert answer(program, number, known.audit) == expected, number


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_numbers_of_another_architecture_mean_nothing(machine: str) -> None:
    """A program of 32 bits would have other numbers for what is denied."""
    known = ARCHITECTURES[machine]
    program = system_call_filter.program_of(machine)
    for other in {I386, X86_64, AARCH64, 0} - {known.audit}:
        for number in (0, 1, 39, 175, 425):
            assert answer(program, number, other) == FAIL | errno.EPERM


def test_numbers_of_x32_do_not_pass_the_list() -> None:
    program = system_call_filter.program_of("x86_64")
    for number in (0, 39, 175, 425):
        assert answer(program, 0x4000_0000 | number, X86_64) == FAIL | errno.ENOSYS


def test_a_debugger_may_skip_a_call() -> None:
    assert answer(system_call_filter.program_of("x86_64"), -1, X86_64) == ALLOW


@pytest.mark.skipif(not os.path.exists("/usr/include/x86_64-linux-gnu"), reason="no headers")  # noqa: PTH110
def test_the_numbers_are_the_systems() -> None:
    """The headers of this machine and of all others number the calls."""
    checked = 0
    for machine, path in (
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ):
        try:
            with open(path, encoding="ascii") as stream:  # noqa: PTH123
                words = [line.split()[1:3] for line in stream if line.startswith("#define __NR")]
        except OSError:
            continue
        numbers = {pair[0].removeprefix("__NR_"): pair[1] for pair in words if len(pair) == 2}
        numbers |= {name.removeprefix("__NR3264_"): text for name, text in numbers.items()}
        for name, number in ARCHITECTURES[machine].denied.items():
            assert numbers[name] == str(number), (machine, name)
            checked += 1
        for name, denied in ARCHITECTURES["x86_64"].denied.items():
            if machine == "aarch64" and name in numbers:
                assert name in ARCHITECTURES[machine].denied, denied
    assert checked


#: Headers of the kernel with the numbers of an architecture: those of aarch64 are the generic ones.
HEADERS = {
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
    "x86_64": (
        "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        "/usr/include/asm/unistd_64.h",
    ),
}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    found = next((path for path in map(Path, HEADERS[machine]) if path.exists()), None)
    if found is None:
        pytest.skip(f"no headers of {machine} are installed")
    text = found.read_text()
    numbers = {
        name: int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)
    }
    known = ARCHITECTURES[machine]
    named = {**known.denied, "seccomp": known.seccomp}
    assert {name: numbers[name] for name in named} == named
    # what the other architecture denies, and this one has, is denied here as well
    every = {name for one in ARCHITECTURES.values() for name in one.denied}
    assert (every - known.denied.keys()) & numbers.keys() == set()
