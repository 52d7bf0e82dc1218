"""Kinds that the design has and this build does not: every document of them is refused.

They are declared so that the schema names them and says why, instead of calling a word that
stands in the documentation unknown.
"""

from typing import Annotated, ClassVar, Literal

from reconciler.model.documents.fields import Metadata, Part, doc


class PolicySpec(Part, frozen=True):
    """A rule that objects must also satisfy."""

    not_built: ClassVar[dict[str, str]] = {
        "match": "policies are not built yet",
        "schema": "policies are not built yet",
        "message": "policies are not built yet",
    }


class Policy(Part, frozen=True, tag_field="kind", tag="Policy"):
    """A rule that objects must also satisfy."""

    api_version: Annotated[Literal["muster/v1"], doc("API group and version.", example="muster/v1")]
    metadata: Annotated[Metadata, doc("Name and labels.", example={"name": "need-time-limit"})]
    spec: Annotated[PolicySpec, doc("What is desired.", example={})] = PolicySpec()
