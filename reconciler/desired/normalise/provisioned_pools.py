"""Normalises pools whose nodes come and go."""

from reconciler.desired.documents.faults import FaultCollector
from reconciler.model import desired
from reconciler.model.documents import nodepool_spec

#: The least default of ``createsPerHour``: a small pool, too, must be able to replace nodes.
_CREATES_PER_HOUR_MIN = 10


def bounds(spec: nodepool_spec.NodePoolSpec, faults: FaultCollector) -> tuple[int, int]:
    """Return the least and most nodes of a pool with numbered nodes."""
    if spec.count is not None or spec.max is None:
        if spec.count is None and spec.min is not None:
            faults.add("missing-field", "`min` needs `max` beside it", "spec", "max")
        return spec.count or 0, spec.count or 0
    least = spec.min or 0
    if least > spec.max:
        faults.add(
            "min-above-max",
            "the least can't be more than the most",
            "spec",
            "min",
            found=str(least),
            expected=f"at most {spec.max}",
        )
    return min(least, spec.max), spec.max


def is_provisioned(spec: nodepool_spec.NodePoolSpec) -> bool:
    """Return True if a provisioner creates and destroys the nodes of the pool."""
    scales = spec.min is not None or spec.max is not None
    return spec.provisioner != "static" and (scales or spec.provisioner == "exec")


def provisioning(
    spec: nodepool_spec.NodePoolSpec, faults: FaultCollector
) -> desired.Provisioning | None:
    """Return the provisioning of nodes; None if there is none."""
    given = spec.provision
    if not is_provisioned(spec):
        if given != nodepool_spec.ProvisionSpec():
            faults.add(
                "exclusive-fields",
                "it is for pools with `provisioner: exec`, or with `min` and `max`: remove it",
                "spec",
                "provision",
            )
        return None
    if (given.script is None) is (spec.provisioner == "exec"):
        faults.add(
            "missing-field" if given.script is None else "exclusive-fields",
            "`provisioner: exec` needs the name of a script, and no other has one",
            *("spec", "provision", "script"),
        )
    if given.settings and spec.provisioner != "exec":
        faults.add(
            "exclusive-fields",
            "settings are for scripts, and this pool has none: remove them",
            *("spec", "provision", "settings"),
        )
    least, most = bounds(spec, FaultCollector())

    def seconds(text: str | int, field: str) -> int:
        return faults.duration(text, "spec", "provision", field)

    return desired.Provisioning(
        minimum=least,
        maximum=most,
        script=given.script or "",
        settings=dict(given.settings),
        delay_s=seconds(given.delay, "delay"),
        idle_s=seconds(given.idle_time, "idleTime"),
        cooldown_s=seconds(given.cooldown, "cooldown"),
        create_timeout_s=seconds(given.create_timeout, "createTimeout"),
        script_timeout_s=seconds(given.script_timeout, "scriptTimeout"),
        retries=given.retries,
        creates_per_hour=(
            max(_CREATES_PER_HOUR_MIN, 2 * most)
            if given.creates_per_hour is None
            else given.creates_per_hour
        ),
        orphans=given.orphans,
    )
