"""Amounts and masks as the scheduler has them, and the numbers that mean no amount."""

import math

import numpy as np
from numpy.typing import NDArray

Amounts = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: Milli-CPUs, bytes of memory, milli-GPUs.
Vector = tuple[int, int, int]
#: What a queue is charged: a ``Vector``, and one more for each pool with amounts of its own.
Charge = tuple[int, ...]
#: "Not rationed", and "as much as there is": larger than any amount, far from overflow.
UNLIMITED = 2**62
#: Milli-GPUs of a whole device.
WHOLE = 1000
#: A run without a time limit.
ENDLESS = math.inf
#: No topology level.
NO_LEVEL = -1
