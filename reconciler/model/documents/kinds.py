"""All kinds by name, with the type of their documents; structural kinds are marked."""

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
from reconciler.model.documents.fields import DocumentPart

Document = (
    cluster_spec.ClusterDocument
    | nodepool_spec.NodePoolDocument
    | queue_spec.QueueDocument
    | queue_spec.PriorityClassDocument
    | access_spec.AccessDocument
    | volume_spec.VolumeDocument
    | quota_spec.QuotaDocument
    | reservation_spec.ReservationDocument
    | policy_spec.PolicyDocument
    | job_spec.JobDocument
)

#: Kind to type, in the order in which objects are applied (removal goes the other way).
KINDS: dict[str, type[DocumentPart]] = {
    "Cluster": cluster_spec.ClusterDocument,
    "Access": access_spec.AccessDocument,
    "Policy": policy_spec.PolicyDocument,
    "PriorityClass": queue_spec.PriorityClassDocument,
    "NodePool": nodepool_spec.NodePoolDocument,
    "Volume": volume_spec.VolumeDocument,
    "Queue": queue_spec.QueueDocument,
    "Quota": quota_spec.QuotaDocument,
    "Reservation": reservation_spec.ReservationDocument,
    "Job": job_spec.JobDocument,
}

#: Kinds of which every document is refused for now, and why.
KINDS_NOT_BUILT: dict[str, str] = {}

#: Every kind but Job: an error in one refuses the structure of its revision as a whole.
STRUCTURAL_KINDS = frozenset(KINDS) - {"Job"}
