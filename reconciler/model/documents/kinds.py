"""All kinds by name: which type a document is read into, and which ones are structure."""

from reconciler.model.documents import access_spec as access
from reconciler.model.documents import cluster_spec as cluster
from reconciler.model.documents import job_spec as job
from reconciler.model.documents import nodepool_spec as nodepool
from reconciler.model.documents import policy_spec as policy
from reconciler.model.documents import queue_spec as queue
from reconciler.model.documents import quota_spec as quota
from reconciler.model.documents import reservation_spec as reservation
from reconciler.model.documents import volume_spec as volume
from reconciler.model.documents.fields import Part

Document = (
    cluster.Cluster
    | nodepool.NodePool
    | queue.Queue
    | queue.PriorityClass
    | access.Access
    | volume.Volume
    | quota.Quota
    | reservation.Reservation
    | policy.Policy
    | job.Job
)

#: Kind to type, in the order in which objects are applied (removal goes the other way).
KINDS: dict[str, type[Part]] = {
    "Cluster": cluster.Cluster,
    "Access": access.Access,
    "Policy": policy.Policy,
    "PriorityClass": queue.PriorityClass,
    "NodePool": nodepool.NodePool,
    "Volume": volume.Volume,
    "Queue": queue.Queue,
    "Quota": quota.Quota,
    "Reservation": reservation.Reservation,
    "Job": job.Job,
}

#: Kinds of which every document is refused for now, and why.
KINDS_NOT_BUILT: dict[str, str] = {}

#: Every kind but Job: an error in one refuses the structure of its revision as a whole.
STRUCTURAL_KINDS = frozenset(KINDS) - {"Job"}
