"""Start orders of attempts as the agent's launcher builds them, without anything to wait for."""

from typing import Any

from agents.tasks import checkpoint_folders, start_orders, task_users
from agents.tasks.node_context import NodeContext
from reconciler.model.observed.devices import MigInstance
from reconciler.model.protocol.agent_messages import Assignment, TaskTemplate


def order_for(
    assignment: Assignment,
    template: TaskTemplate,
    node: NodeContext,
    *,
    cpus: str = "",
    instances: tuple[MigInstance, ...] = (),
) -> dict[str, Any]:
    """Return the order to start an attempt."""
    start_orders.check(assignment, template)
    user = task_users.find_user(template, node)
    resources = start_orders.StartResources(
        user,
        start_orders.image_request(template, node, user),
        cpus=cpus,
        instances=instances,
        shared_gpu=start_orders.mps_share(assignment, template, node.gpus, user),
        data=checkpoint_folders.checkpoint_variables(assignment, template, node.shared, user),
    )
    return start_orders.start_order(assignment, template, node, resources)
