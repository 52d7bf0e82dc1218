"""The filter of system calls that tasks run under, as a program of classic BPF. Stdlib only.

An architecture comes in, a program for ``seccomp`` comes out; :func:`install` puts this thread and
all that it starts under it, for good. What is denied fails with EPERM, as without the right to it.
"""

import ctypes
import errno
import os
import struct
from typing import Any, NamedTuple

#: One instruction: code, jumps if true and if false, operand.
INSTRUCTION = struct.Struct("=HBBI")
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
#: Where the kernel has the number and the architecture of a call (``struct seccomp_data``).
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
#: From here on x86_64 has the numbers of x32, which would pass a list of the others.
_X32 = 0x4000_0000
#: A debugger's number for a call that is not to be made; its answer is the debugger's.
_SKIPPED = 0xFFFF_FFFF

_SET_MODE_FILTER = 1
#: Do not slow the task down by a mitigation that a filter brought with it before Linux 5.16.
_SPEC_ALLOW = 4
_SYSCALL: Any = ctypes.PyDLL(None, use_errno=True).syscall


class Architecture(NamedTuple):
    """The numbers of an architecture: its own, that of ``seccomp``, and those of denied calls."""

    audit: int
    seccomp: int
    denied: dict[str, int]


# Not denied, on purpose: ``ptrace``, ``process_vm_readv`` and ``kcmp`` (debuggers, MPI, CUDA);
# ``perf_event_open`` (profilers; ``kernel.perf_event_paranoid`` bounds it); ``add_key``, ``keyctl``
# and ``request_key`` (Kerberos); ``quotactl`` (``quota`` shows a user's own); ``clone``,
# ``unshare``, ``mount`` and their like, which do nothing without a right that only a user namespace
# gives (Apptainer, Enroot and bubblewrap need it; ``user.max_user_namespaces`` bounds it).
#: Since Linux 4.20 new calls have the same number everywhere. ``io_uring`` is a large part of the
#: kernel's faults, and every library that uses it works without.
_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
}
ARCHITECTURES = {
    "x86_64": Architecture(
        0xC000_003E,
        317,
        {
            "uselib": 134,
            "acct": 163,
            "settimeofday": 164,
            "swapon": 167,
            "swapoff": 168,
            "reboot": 169,
            "iopl": 172,
            "ioperm": 173,
            "init_module": 175,
            "delete_module": 176,
            "clock_settime": 227,
            "kexec_load": 246,
            "open_by_handle_at": 304,
            "finit_module": 313,
            "kexec_file_load": 320,
            "bpf": 321,
            "userfaultfd": 323,
            **_EVERYWHERE,
        },
    ),
    "aarch64": Architecture(
        0xC000_00B7,
        277,
        {
            "acct": 89,
            "kexec_load": 104,
            "init_module": 105,
            "delete_module": 106,
            "clock_settime": 112,
            "reboot": 142,
            "settimeofday": 170,
            "swapon": 224,
            "swapoff": 225,
            "open_by_handle_at": 265,
            "finit_module": 273,
            "bpf": 280,
            "userfaultfd": 282,
            "kexec_file_load": 294,
            **_EVERYWHERE,
        },
    ),
}


class _Program(ctypes.Structure):
    """A program for ``seccomp`` (``struct sock_fprog``)."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def program_of(machine: str) -> bytes:
    """Return the filter for an architecture.

    Programs of another architecture, and calls by its numbers, fail altogether: a list of one
    architecture's numbers means nothing for those.

    Raises:
        KeyError: the table of numbers lacks this architecture.
    """
    known = ARCHITECTURES[machine]
    numbers = sorted(known.denied.values())
    # each is a test, and the return that it leads to if true; None: it goes on if true
    tests: list[tuple[int, int, int]] = []
    if machine == "x86_64":
        tests.append((_IF_EQUAL, _SKIPPED, _ALLOW))
        tests.append((_IF_AT_LEAST, _X32, _FAIL | errno.ENOSYS))
    tests += [(_IF_EQUAL, number, _FAIL | errno.EPERM) for number in numbers]
    returns = [_ALLOW, _FAIL | errno.EPERM, _FAIL | errno.ENOSYS]
    # three of the head, one that lets the most frequent calls pass at once, and the tests
    ends_at = 4 + len(tests)

    def jump(at: int, answer: int) -> int:
        return ends_at + returns.index(answer) - at - 1

    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 0, jump(1, _FAIL | errno.EPERM), known.audit),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_AT_LEAST, 0, jump(3, _ALLOW), numbers[0]),
    ]
    for at, (test, operand, answer) in enumerate(tests, 4):
        lines.append((test, jump(at, answer), 0, operand))
    lines += [(_RETURN, 0, 0, answer) for answer in returns]
    return b"".join(INSTRUCTION.pack(*line) for line in lines)


#: The filter of this machine; empty if the table of numbers lacks its architecture.
_MACHINE = os.uname().machine
_OWN = program_of(_MACHINE) if _MACHINE in ARCHITECTURES else b""


def install() -> None:
    """Put this thread, and what it starts from now on, under the filter.

    Needs ``no_new_privs``, or root's rights. The caller may be a forked child.

    Raises:
        OSError: the kernel refuses, or the architecture is unknown.
    """
    if not _OWN:
        raise OSError(errno.ENOSYS, f"no filter for {_MACHINE}")
    program = _Program(len(_OWN) // INSTRUCTION.size, _OWN)
    number = ctypes.c_long(ARCHITECTURES[_MACHINE].seccomp)
    for flags in (_SPEC_ALLOW, 0):  # Linux before 4.17 knows no such flag
        given = ctypes.c_long(_SET_MODE_FILTER), ctypes.c_long(flags), ctypes.byref(program)
        if _SYSCALL(number, *given) == 0:
            return
        problem = ctypes.get_errno()
        if problem != errno.EINVAL:
            break
    raise OSError(problem, os.strerror(problem))
