"""Normalises what surrounds a job's command: its code, where it was submitted, environment modules,
files for its output, and which group's end is that of the job.
"""

import msgspec

from reconciler.desired.documents.faults import FaultCollector
from reconciler.model import desired
from reconciler.model.documents import job_spec, job_staging
from reconciler.model.observed import job_code, output_files
from reconciler.model.values import folder_identity, found_values


def with_surroundings(
    job: desired.Job, spec: job_spec.JobSpec, faults: FaultCollector
) -> desired.Job:
    """Return the job with what surrounds its command, and note what can't be."""
    job = _with_files(job, spec, faults)
    if spec.code is not None:
        job = msgspec.structs.replace(job, code=_code(spec.code, faults))
    if spec.submitted is None and not spec.modules and spec.ends_with is None:
        return job
    return msgspec.structs.replace(
        job,
        submitted=_submitted(spec.submitted, faults),
        modules=_modules(spec, faults),
        ends_with=_ends_with(spec, faults),
    )


def _with_files(job: desired.Job, spec: job_spec.JobSpec, faults: FaultCollector) -> desired.Job:
    """Return the job with the files that its output is copied to, and note what they can't be."""
    if spec.output is None and spec.error is None:
        return job
    for field, path in (("output", spec.output), ("error", spec.error)):
        if path is None or path == output_files.NOWHERE:
            continue
        shown = found_values.quote(path)
        if output_files.unknown_words(path):
            known = ", ".join(f"%{letter}" for letter in output_files.WORDS)
            faults.add(
                "no-such-word",
                f"{', '.join(output_files.unknown_words(path))} stands for nothing: use {known}; "
                "%% is a percent sign",
                *("spec", field), found=shown,
            )  # fmt: skip
        if job.array_count is not None and not output_files.words_in(path) & {"a", "j"}:
            faults.add(
                "one-file-for-all",
                "all elements of this array would write to one file: write %a for the index in it",
                *("spec", field), found=shown,
            )  # fmt: skip
        has_place = spec.submitted is not None and spec.submitted.folder is not None
        if not path.startswith("/") and spec.working_directory is None and not has_place:
            faults.add(
                "unknown-folder",
                "a relative path needs workingDirectory in a file of YAML: write that, or the full "
                "path",
                *("spec", field), found=shown,
            )  # fmt: skip
    return msgspec.structs.replace(
        job,
        files=output_files.OutputFiles(
            spec.output or "", spec.error or "", spec.open_mode == "append"
        ),
    )


def _ends_with(spec: job_spec.JobSpec, faults: FaultCollector) -> str:
    """Return the group whose end is that of the job, and note one that there is not."""
    names = [group.name for group in spec.groups] or ["main"]
    if spec.ends_with is not None and spec.ends_with not in names:
        faults.add(
            "unknown-group",
            f"no group of this job has that name: use one of {', '.join(names)}",
            *("spec", "endsWith"),
            found=found_values.quote(spec.ends_with),
        )
    return spec.ends_with or ""


def _code(spec: job_staging.CodeSpec, faults: FaultCollector) -> job_code.JobCode:
    """Return the code of a job, and note what can't be."""
    place = ("spec", "code")
    if (spec.digest is None) == (spec.git is None):
        faults.add(
            "digest-or-git",
            "write digest, as `muster submit --code` does, or git with revision, and not both",
            *place,
            expected="exactly one of digest and git",
        )
    elif (spec.git is None) != (spec.revision is None):
        faults.add(
            "git-and-revision",
            "git and revision go together: write both or neither",
            *place,
            expected="the full id of a commit in revision if there is git",
        )
    user, at, _ = (spec.git or "").partition("://")[2].partition("/")[0].rpartition("@")
    if at and ":" in user:
        faults.add(
            "password-in-url",
            "the URL has a password, and what a job says is in git for good: remove it, and let "
            "git on the nodes find it (credential helper, or an SSH key)",
            *place,
            "git",
        )
    return job_code.JobCode(
        spec.digest or "",
        spec.git or "",
        spec.revision or "",
        spec.path or "",
    )


def _submitted(
    spec: job_staging.SubmittedSpec | None, faults: FaultCollector
) -> folder_identity.SubmitPlace:
    """Return where a command was submitted, and note what can't be."""
    if spec is None:
        return folder_identity.NOWHERE
    return folder_identity.SubmitPlace(
        _folder(spec.folder, "folder", faults), _folder(spec.python, "python", faults)
    )


def _folder(
    spec: job_staging.FolderSpec | None, field: str, faults: FaultCollector
) -> folder_identity.FolderIdentity | None:
    if spec is None:
        return None
    if (spec.marker is None) != (spec.marker_sha256 is None):
        faults.add(
            "half-a-marker",
            "marker and markerSha256 go together: write both or neither",
            *("spec", "submitted", field),
        )
    return folder_identity.FolderIdentity(
        spec.path, spec.device, spec.inode, spec.boot_id,
        spec.marker or "", spec.marker_sha256 or "",
    )  # fmt: skip


def _modules(spec: job_spec.JobSpec, faults: FaultCollector) -> tuple[str, ...]:
    """Return environment modules, and note those that nothing would load."""
    if spec.modules and spec.runtime != "process":
        faults.add(
            "modules-in-container",
            f"modules are those of the node, which runtime {spec.runtime} does not see: use an "
            "image that has what they bring, or runtime process",
            *("spec", "modules"),
            found=found_values.quote(", ".join(spec.modules)),
        )
    return tuple(spec.modules)
