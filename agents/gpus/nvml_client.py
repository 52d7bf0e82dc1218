"""The agent's side of :mod:`agents.gpus.nvml`: one process at a time, with a deadline per answer.

A driver that hangs can hold the process in the kernel, beyond the reach of SIGKILL. Then the driver
is reported as unresponsive, and no other process starts before that one has gone: a sick driver
never costs more than one stuck process.
"""

import contextlib
import os
import select
import struct
import subprocess
import time
from typing import IO

import msgspec

from agents.gpus import samples
from reconciler import interpreter
from reconciler.model.observed import devices

#: Time for the driver to wake its GPUs, and for any other answer.
START_S = 60.0
ANSWER_S = 10.0
#: A process is replaced after this time, to notice GPUs that come and go, and sooner while one is
#: not healthy: NVML looks for devices only when it starts.
RECYCLE_S = 3600.0
RECYCLE_UNWELL_S = 120.0
FRAME_BYTES_MAX = 16 * 2**20

#: Time for a change of MIG: a change of the mode resets the GPU.
CUT_S = 180.0

#: Started from the present files.
_NOT_UNDERSTOOD = (
    "this agent does not understand the process that reads GPUs; it may be of another "
    "version: start the agent anew"
)

_Answer = samples.Sample | samples.MigOutcome
_decode = msgspec.msgpack.Decoder(
    samples.Sample | samples.SampleProgress | samples.MigOutcome
).decode


class NvmlClient:
    """A source of samples. Only one thread may use it at a time."""

    def __init__(self, *, start_s: float = START_S, answer_s: float = ANSWER_S) -> None:
        self.start_s = start_s
        self.answer_s = answer_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._answered = False
        self._unwell = False
        self._at = ""

    @property
    def pid(self) -> int:
        """Process id of the running process; 0 if none runs."""
        return 0 if self._process is None else self._process.pid

    def sample(self, *, usage: bool) -> samples.Sample:
        """Return a sample within a limited time. If the driver fails, ``driver`` shows it."""
        if self._stuck is not None and self._stuck.poll() is None:
            return self._silent("it has not answered since, and is still stuck")
        self._stuck = None
        age_s = time.monotonic() - self._started_at
        if age_s > (RECYCLE_UNWELL_S if self._unwell else RECYCLE_S):
            self.close()
        try:
            if self._process is None:
                self._start()
            limit_s = self.answer_s if self._answered else self.start_s
            found = self._exchange(b"usage\n" if usage else b"nothing\n", limit_s)
        except OSError as problem:
            self.close()
            return _failed(f"the process that reads GPUs can't be used: {problem}")
        except msgspec.MsgspecError as problem:
            self.close()
            return _failed(f"{_NOT_UNDERSTOOD}: {problem}")
        if not isinstance(found, samples.Sample):
            self.close()
            return _failed("the process that reads GPUs answered what was not asked")
        if found.driver != devices.OK:
            self.close()
        self._unwell = any(device.state != devices.OK for device in found.devices)
        return found

    def cut(self, order: samples.MigOrder) -> samples.MigOutcome:
        """Change the MIG layout of a GPU within a limited time.

        After a change of mode the process is replaced, because NVML knows devices as they were when
        it started.
        """
        problem = "the driver still hangs"
        if self._stuck is None or self._stuck.poll() is not None:
            try:
                if self._process is None:
                    self._start()
                found = self._exchange(b"cut " + msgspec.json.encode(order) + b"\n", CUT_S)
                if isinstance(found, samples.MigOutcome):
                    if found.switched:
                        self.close()
                    return found
                problem = found.message
            except OSError as error:
                problem = f"the process that asks the driver can't be used: {error}"
            except msgspec.MsgspecError as error:
                problem = f"{_NOT_UNDERSTOOD}: {error}"
            self.close()
        return samples.MigOutcome(
            devices.CUT_FAILED, problem, order.mine, order.mode_mine, unknown=True
        )

    def close(self) -> None:
        """End the process, without waiting for one that cannot be ended."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.kill()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._stuck = process

    def _start(self) -> None:
        command = interpreter.module_command("agents.gpus.nvml", str(os.getpid()))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started_at = time.monotonic()
        self._answered = False
        self._at = "the start of its process"

    def _exchange(self, request: bytes, limit_s: float) -> _Answer:
        process = self._process
        assert process is not None  # noqa: S101 - for the type checker
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018
        with contextlib.suppress(BrokenPipeError):  # it may have reported a reason before it ended
            stdin.write(request)
            stdin.flush()
        until = time.monotonic() + limit_s
        while True:
            body = self._frame(stdout, until)
            if body is None:
                self.close()
                return self._silent(f"it did not answer in {limit_s:g} s")
            if not body:
                process.kill()
                code = process.wait()
                self.close()
                return _failed(f"the process that reads GPUs ended ({code}) at {self._at}")
            message: _Answer | samples.SampleProgress = _decode(body)
            if isinstance(message, samples.SampleProgress):
                self._at = message.what
            else:
                self._answered = True
                return message

    def _frame(self, stdout: IO[bytes], until: float) -> bytes | None:
        """Return the body of the next frame; empty at the end, None after the deadline."""
        head = _exactly(stdout.fileno(), 4, until)
        if not head:
            return head
        (length,) = struct.unpack(">I", head)
        if length > FRAME_BYTES_MAX:
            return b""
        return _exactly(stdout.fileno(), length, until)

    def _silent(self, what: str) -> samples.Sample:
        return samples.Sample(
            time.time(),
            devices.UNRESPONSIVE,
            f"the NVIDIA driver hangs: {what}; last at {self._at}",
        )


def _failed(message: str) -> samples.Sample:
    return samples.Sample(time.time(), "failed", message)


def _exactly(handle: int, count: int, until: float) -> bytes | None:
    """Return that many bytes; empty if they end earlier, None after the deadline."""
    parts = b""
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    while len(parts) < count:
        left_s = until - time.monotonic()
        if left_s <= 0 or not poller.poll(1000 * left_s):
            return None
        more = os.read(handle, count - len(parts))
        if not more:
            return b""
        parts += more
    return parts
