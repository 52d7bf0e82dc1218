"""Guarded calls of NVML's Python binding, which return a code or a value and note failures."""

from typing import Any

from reconciler.model.observed import devices

Code = int
UNINITIALIZED, NOT_SUPPORTED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND = 1, 3, 9, 12
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 13, 15, 16, 18
ARGUMENT_VERSION_MISMATCH, UNKNOWN = 25, 999
#: After one of these errors nothing of the driver can be read; a new process may succeed.
DRIVER_GONE = {UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH}
#: Errors of a GPU that has failed as a whole.
DEVICE_GONE = {
    GPU_IS_LOST: (devices.LOST, "the driver reports that it has fallen off the bus"),
    RESET_REQUIRED: (devices.FAILED, "the driver reports that it needs a reset"),
}
#: Errors that only mean that the GPU or driver version lacks a feature.
UNTOLD = {NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH}


class DriverError(Exception):
    """A driver that cannot be asked at all."""

    def __init__(self, code: Code) -> None:
        self.code = code
        super().__init__(f"NVML error {code}")


class NvmlCaller:
    """Calls functions for one device, and notes what has failed."""

    def __init__(self, library: Any, device: Any = None) -> None:
        self.library = library
        self.device = device
        self.state = devices.OK
        self.message = ""
        self.errors: dict[str, Code] = {}

    def __call__(self, function: str, *arguments: Any) -> Any:
        """Return the function's result; None if it fails for any reason."""
        if self.state != devices.OK:
            return None
        code, value = call(self.library, function, self.device, *arguments)
        if code == 0:
            return value
        if code in DRIVER_GONE:
            raise DriverError(code)
        if code in DEVICE_GONE:
            self.state, self.message = DEVICE_GONE[code]
        elif code not in UNTOLD:
            self.errors[function] = code
        return None

    def first(self, *calls: tuple[Any, ...]) -> Any:
        """Return the result of the first function that has one: the newest, or one that it
        replaced.
        """
        for function, *arguments in calls:
            value = self(function, *arguments)
            if value is not None:
                return value
        return None


def call(library: Any, function: str, *arguments: Any) -> tuple[Code, Any]:
    """Return (0, the function's result), or (NVML's error code, None)."""
    try:
        return 0, getattr(library, function)(*arguments)
    except AttributeError:
        return FUNCTION_NOT_FOUND, None  # a binding older than the function
    except library.NVMLError as error:
        return int(getattr(error, "value", UNKNOWN)), None
    except (ValueError, UnicodeDecodeError):
        return UNKNOWN, None  # an answer that is not text
