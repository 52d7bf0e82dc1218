"""Normalises volumes, and the data that jobs copy from and to them.

Each document is checked here; a job together with its volumes is checked by ``of_job``, when both
are known.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from reconciler.desired.documents.faults import Fault, FaultCollector
from reconciler.model import desired
from reconciler.model.documents import job_staging, volume_spec
from reconciler.model.observed import storage
from reconciler.model.values import found_values

#: What ``to`` may name, and which of it tells the tasks of a job apart.
PLACEHOLDERS = ("job", "run", "element", "group", "index", "try")
_MOUNT_FIELDS = {
    "mountPath": "mount_path", "fileSystem": "file_system", "source": "source",
}  # fmt: skip


def volume(name: str, spec: volume_spec.VolumeSpec, faults: FaultCollector) -> desired.Volume:
    """Return a volume; fields that do not fit its type are faults."""
    if spec.type == "mount":
        if spec.mount_path is None:
            faults.add("missing-field", "a mount needs the folder where it is", "spec", "mountPath")
        if spec.s3 is not None:
            faults.add(
                "exclusive-fields", "a volume of type mount has no bucket: remove s3, or say "
                "type: s3", "spec", "s3",
            )  # fmt: skip
        return desired.Volume(
            name,
            spec.mount_path or "/",
            tuple(spec.pools),
            spec.file_system or "",
            spec.source or "",
            spec.read_only,
        )
    for field, attribute in _MOUNT_FIELDS.items():
        if getattr(spec, attribute) is not None:
            faults.add(
                "exclusive-fields",
                f"a bucket is not mounted: remove {field}, or say type: mount",
                "spec",
                field,
            )
    if spec.s3 is None:
        faults.add("missing-field", "a volume of type s3 needs its bucket", "spec", "s3")
        return desired.Volume(name, pools=tuple(spec.pools))
    if (spec.s3.access_key_secret is None) is not (spec.s3.secret_key_secret is None):
        missing = "secretKeySecret" if spec.s3.secret_key_secret is None else "accessKeySecret"
        faults.add("missing-field", "one key is of no use without the other", "spec", "s3", missing)
    objects = storage.ObjectStore(
        endpoint=spec.s3.endpoint.rstrip("/"),
        bucket=spec.s3.bucket,
        prefix=spec.s3.prefix or "",
        region=spec.s3.region or "",
        access_key=spec.s3.access_key_secret or "",
        secret_key=spec.s3.secret_key_secret or "",
        ca_certificate=spec.s3.ca_certificate or "",
    )
    return desired.Volume(name, pools=tuple(spec.pools), read_only=spec.read_only, objects=objects)


def stage(spec: job_staging.StageSpec, run: str, faults: FaultCollector) -> desired.StagingSpec:
    """Return the staging of a job, with unique names of its inputs.

    Args:
        spec: as written.
        run: what tells the outputs of the run from those of all others.
        faults: gets what is wrong.
    """
    ins = [
        desired.StageIn(
            one.name or one.volume, one.volume, one.path or "", one.sha256 or "",
            one.checksums or "",
        )
        for one in spec.inputs
    ]  # fmt: skip
    names = Counter(one.name for one in ins)
    for index, one in enumerate(ins):
        if names[one.name] > 1:
            faults.add(
                "duplicate-name",
                "two inputs have this name: give each its own",
                *("spec", "stage", "inputs", index, "name"),
                found=found_values.quote(one.name),
            )
        if one.sha256 and one.checksums:
            faults.add(
                "exclusive-fields",
                "sha256 is of a single file, checksums of a folder: keep one of the two",
                *("spec", "stage", "inputs", index, "sha256"),
            )
    for index, out in enumerate(spec.outputs):
        for word in unknown_placeholders(out.to):
            faults.add(
                "unknown-placeholder",
                "unknown placeholder",
                *("spec", "stage", "outputs", index, "to"),
                found=found_values.quote(word),
                expected="one of " + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS),
            )
    outs = [
        desired.StageOut(one.path, one.volume, one.to.replace("{run}", run), one.when)
        for one in spec.outputs
    ]
    timeout_s = faults.duration(spec.timeout, "spec", "stage", "timeout")
    return desired.StagingSpec(tuple(ins), tuple(outs), timeout_s)


def unknown_placeholders(text: str) -> Iterator[str]:
    """Return unknown placeholders in a target."""
    rest = text
    for name in PLACEHOLDERS:
        rest = rest.replace(f"{{{name}}}", "")
    while "{" in rest or "}" in rest:
        begin = min(at for at in (rest.find("{"), rest.find("}")) if at >= 0)
        end = rest.find("}", begin)
        yield rest[begin : end + 1] if end >= 0 else rest[begin:]
        rest = rest[end + 1 :] if end >= 0 else ""


def of_job(job: desired.Job, known: Mapping[str, desired.Volume]) -> Fault | None:
    """Return problems of a job together with its volumes, all of them known."""
    for index, name in enumerate(job.volumes):
        if known[name].objects is not None:
            return Fault(
                "not-mounted",
                "this is a bucket, which is mounted nowhere: copy from it by stage.inputs",
                ("spec", "volumes", index),
                found=found_values.quote(name),
            )
    for index, out in enumerate(job.stage.outs):
        place: tuple[str | int, ...] = ("spec", "stage", "outputs", index)
        if known[out.volume].read_only:
            return Fault(
                "read-only", "nothing can be copied to this volume: it is readOnly",
                (*place, "volume"), found=found_values.quote(out.volume),
            )  # fmt: skip
        lacking = [f"{{{name}}}" for name in _needed(job) if f"{{{name}}}" not in out.to]
        if lacking:
            return Fault(
                "overwriting",
                "its tasks would overwrite what others have left: name what tells them apart",
                (*place, "to"),
                found=found_values.quote(out.to),
                expected=f"with {' and '.join(lacking)}",
            )
    return None


def _needed(job: desired.Job) -> Iterator[str]:
    """Return the placeholders that are needed to tell the tasks of a job apart."""
    if job.array_count is not None:
        yield "element"
    if len(job.groups) > 1:
        yield "group"
    if any(group.count > 1 for group in job.groups):
        yield "index"
