"""All kinds by name: which type a document is read into, and which ones are structure."""

from reconciler.model.documents import (
    access_spec,
    cluster_spec,
    job_spec,
    nodepool_spec,
    policy_spec,
    queue_spec,
    quota_spec,
    reservation_spec,
    volume_spec,
)
from reconciler.model.documents.fields import Part

Document = (
    cluster_spec.Cluster
    | nodepool_spec.NodePool
    | queue_spec.Queue
    | queue_spec.PriorityClass
    | access_spec.Access
    | volume_spec.Volume
    | quota_spec.Quota
    | reservation_spec.Reservation
    | policy_spec.Policy
    | job_spec.Job
)

#: Kind to type, in the order in which objects are applied (removal goes the other way).
KINDS: dict[str, type[Part]] = {
    "Cluster": cluster_spec.Cluster,
    "Access": access_spec.Access,
    "Policy": policy_spec.Policy,
    "PriorityClass": queue_spec.PriorityClass,
    "NodePool": nodepool_spec.NodePool,
    "Volume": volume_spec.Volume,
    "Queue": queue_spec.Queue,
    "Quota": quota_spec.Quota,
    "Reservation": reservation_spec.Reservation,
    "Job": job_spec.Job,
}

#: Kinds of which every document is refused for now, and why.
KINDS_NOT_BUILT: dict[str, str] = {}

#: Every kind but Job: an error in one refuses the structure of its revision as a whole.
STRUCTURAL_KINDS = frozenset(KINDS) - {"Job"}
