"""What the server has heard of nodes, as the loop takes it."""

from reconciler.core import observed_state
from reconciler.metrics import usage_accounting
from reconciler.model.protocol import agent_messages, loop_messages
from reconciler.model.state import records


def report_of(message: loop_messages.Reported) -> records.NodeReport:
    """What a node said, for the next cycle."""
    request = message.request
    return records.NodeReport(
        node=request.node,
        boot_id=request.boot_id,
        incarnation=request.incarnation,
        received_at=message.received_at,
        attempts=request.attempts,
        complete=request.complete,
        sequence=request.sequence,
        inventory=request.inventory,
        usage=request.usage,
        remedies=request.remedies[: agent_messages.REMEDIES_MAX],
    )


def measure(
    message: loop_messages.Reported, meter: usage_accounting.Meter, memory: observed_state.Memory
) -> None:
    """Take down how busy the GPUs of a node's attempts are."""
    node = message.request.node
    if message.gpu_ratios:
        attempts = memory.attempts
        meter.reported(
            node,
            dict(message.gpu_ratios),
            message.received_at,
            [attempts[one] for one in memory.attempts_by_node.get(node, ()) if one in attempts],
        )
