"""All kinds by name: which type a document is read into, and which ones are structure."""

from reconciler.model.documents import access, cluster, job, nodepool, planned, queue
from reconciler.model.documents.fields import Part

Document = (
    cluster.Cluster
    | nodepool.NodePool
    | queue.Queue
    | queue.PriorityClass
    | access.Access
    | job.Job
)

#: Kind to type, in the order in which objects are applied (removal goes the other way).
KINDS: dict[str, type[Part]] = {
    "Cluster": cluster.Cluster,
    "Access": access.Access,
    "Policy": planned.Policy,
    "PriorityClass": queue.PriorityClass,
    "NodePool": nodepool.NodePool,
    "Volume": planned.Volume,
    "Queue": queue.Queue,
    "Quota": planned.Quota,
    "Reservation": planned.Reservation,
    "Job": job.Job,
}

#: Kinds of which every document is refused for now, and why.
KINDS_NOT_BUILT: dict[str, str] = {
    "Quota": "quotas are not built yet",
    "Reservation": "reservations are not built yet",
    "Volume": "volumes are not built yet",
    "Policy": "policies are not built yet",
}

#: Every kind but Job: an error in one refuses the structure of its revision as a whole.
STRUCTURAL_KINDS = frozenset(KINDS) - {"Job"}
