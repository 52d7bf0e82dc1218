"""The child process that judges policies: one request a line in, one answer a line out.

It ends itself if a request takes too much time of the processor, and does not outgrow its memory.
It ends with its parent, which closes its input.
"""

import functools
import json
import resource
import sys
from typing import Any

import msgspec

from reconciler.desired.checks import policy_schemas, safe_patterns

#: The most time of the processor for one request.
CPU_S_MAX = 5
#: The most memory, as address space.
MEMORY_BYTES_MAX = 2**30
#: Schemas of which a validator is remembered.
SCHEMAS_MAX = 500
#: The answer to a request that needs more memory.
OUT_OF_MEMORY = b"memory"

_encode = msgspec.json.Encoder().encode


class PolicyAnswer(msgspec.Struct, frozen=True):
    """Faults of a schema, or a violation by each of some schemas (None: there is none)."""

    faults: list[policy_schemas.SchemaFault] = []
    violations: list[policy_schemas.Violation | None] = []


@functools.lru_cache(maxsize=SCHEMAS_MAX)
def _validator(schema: str) -> Any:
    return safe_patterns.validator(json.loads(schema))


def answer(request: dict[str, Any]) -> PolicyAnswer:
    """Return the answer to a request: ``schema`` to be checked, or ``value`` and ``schemas``."""
    if "schema" in request:
        return PolicyAnswer(faults=policy_schemas.faults(json.loads(request["schema"])))
    return PolicyAnswer(
        violations=[
            policy_schemas.violation(_validator(schema), request["value"], request["searchesS"])
            for schema in request["schemas"]
        ]
    )


def _allow_time() -> None:
    """Let the next request have its time of the processor."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + CPU_S_MAX + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def main() -> None:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    for line in sys.stdin.buffer:
        _allow_time()
        try:
            told = _encode(answer(json.loads(line)))
        except MemoryError:
            told = OUT_OF_MEMORY
        sys.stdout.buffer.write(told + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
