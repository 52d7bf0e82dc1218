"""Start orders of attempts as the agent's launcher builds them, without anything to wait for."""

from agents.supervisor.commands import StartCommand
from agents.tasks import checkpoint_folders, start_commands, task_users
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
) -> StartCommand:
    """Return the command to start an attempt."""
    start_commands.check(assignment, template)
    user = task_users.find_user(template, node)
    resources = start_commands.StartResources(
        user,
        start_commands.image_request(template, node, user),
        cpus=cpus,
        instances=instances,
        shared_gpu=start_commands.mps_share(assignment, template, node.gpus, user),
        data=checkpoint_folders.checkpoint_variables(assignment, template, node.shared, user),
    )
    return start_commands.start_command(assignment, template, node, resources)
