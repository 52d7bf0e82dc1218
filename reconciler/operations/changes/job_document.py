"""From the words of a command line to the YAML of a job, as a person would have written it."""

import difflib
import re
from collections.abc import Mapping

import msgspec

from reconciler.changes import yaml_edit
from reconciler.desired.documents import yaml_writer
from reconciler.model.documents import fields
from reconciler.model.values import folder_identity
from reconciler.model.values.text_lines import split_lines

#: How a problem of what was sent begins.
_SENT = re.compile(r"submission:(?P<line>\d+)(?=:)")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")


class JobOptions(msgspec.Struct, frozen=True):
    """Options of a job for ``submit`` and ``run``. None means that the document leaves it out.

    With a ``script``, the words of the ``command`` after the first are its arguments. ``fields``
    are others, by path below ``spec``; ``written`` are such with values in YAML, which win.
    """

    name: str
    command: tuple[str, ...]
    script: str | None = None
    queue: str | None = None
    gpus: float | None = None
    cpus: str | None = None
    memory: str | None = None
    count: int | None = None
    least: int | None = None
    most: int | None = None
    tasks_per_node: int | None = None
    priority_class: str | None = None
    time_limit: str | None = None
    array: int | None = None
    indexes: str | None = None
    parallelism: int | None = None
    framework: str | None = None
    checkpoint: dict[str, str] = {}
    working_directory: str | None = None
    environment: dict[str, str] = {}
    modules: tuple[str, ...] = ()
    submitted: folder_identity.SubmitPlace = folder_identity.NOWHERE
    code: Mapping[str, str] = {}
    fields: Mapping[str, object] = {}
    written: Mapping[str, str] = {}


def job_document(options: JobOptions) -> dict[str, object]:
    """Return the document, with fields in the order in which people write them."""
    resources = {
        key: value
        for key, value in (
            ("cpu", options.cpus),
            ("memory", options.memory),
            ("gpu", _whole(options.gpus)),
        )
        if value is not None
    }
    spec: dict[str, object] = {}
    written = {
        "queue": options.queue,
        "priorityClass": options.priority_class,
        "timeLimit": options.time_limit,
        "count": options.count,
        "min": options.least,
        "max": options.most,
        "tasksPerNode": options.tasks_per_node,
        "framework": options.framework,
        "checkpoint": options.checkpoint or None,
        "resources": resources or None,
        "workingDirectory": options.working_directory,
        "environment": options.environment or None,
        "modules": list(options.modules) or None,
        "submitted": _submitted(options.submitted),
        "code": dict(options.code) or None,
    }
    spec.update({key: value for key, value in written.items() if value is not None})
    if options.array is not None or options.indexes is not None:
        array: dict[str, object] = (
            {"count": options.array} if options.indexes is None else {"indexes": options.indexes}
        )
        if options.parallelism is not None:
            array["parallelism"] = options.parallelism
        spec["array"] = array
    if options.script is None:
        spec["command"] = list(options.command)
    else:
        if options.command[1:]:
            spec["arguments"] = list(options.command[1:])
        spec["script"] = options.script
    for path, value in options.fields.items():
        _set(spec, path, value)
    for path, text in options.written.items():
        _set(spec, path, _read(text))
    return {
        "apiVersion": fields.API_VERSION,
        "kind": "Job",
        "metadata": {"name": options.name},
        "spec": spec,
    }


def _set(spec: dict[str, object], path: str, value: object) -> None:
    """Set a field by its path. What stands in its way is replaced: the check says what is wrong."""
    *above, last = path.split(".")
    for name in above:
        inner = spec.get(name)
        if not isinstance(inner, dict):
            inner = spec[name] = {}
        spec = inner
    spec[last] = value


def _read(text: str) -> object:
    """Return a value that is written as in YAML; text that is no YAML stands for itself."""
    try:
        (document,) = yaml_edit.documents(f"value: {text}\n")
        return document["value"]
    except (yaml_edit.EditError, ValueError, TypeError, KeyError):
        return text


def _submitted(place: folder_identity.SubmitPlace) -> dict[str, object] | None:
    """Return where a command is submitted; None if nobody knows."""
    written: dict[str, object] = {}
    for name, folder in (("folder", place.folder), ("python", place.python)):
        if folder is not None:
            fields_of = {
                "path": folder.path,
                "device": folder.device,
                "inode": folder.inode,
                "bootId": folder.boot_id,
                "marker": folder.marker,
                "markerSha256": folder.marker_sha256,
            }
            written[name] = {key: value for key, value in fields_of.items() if value != ""}
    return written or None


def _whole(amount: float | None) -> float | int | None:
    """Return a whole number as people write it."""
    return int(amount) if amount is not None and amount.is_integer() else amount


def job_text(options: JobOptions) -> str:
    """Return the document as YAML."""
    return yaml_writer.yaml_text(job_document(options))


def owned(text: str, owner: str) -> str:
    """Return a text of jobs with an owner added to those without one; else as it was written.

    A document that is not a job, or can't be edited, stays as it is: the check of the text says
    why.
    """
    try:
        for document in yaml_edit.documents(text):
            if not isinstance(document, dict) or document.get("kind") != "Job":
                continue
            name = (document.get("metadata") or {}).get("name")
            written = (document.get("spec") or {}).get("owner")
            if isinstance(name, str) and written in (None, ""):  # both mean no owner
                text = yaml_edit.set_fields(text, "Job", name, ((("spec", "owner"), owner),))
    except (yaml_edit.EditError, AttributeError):
        return text
    return text


def placed(problem: str, asked: str, sent: str, place: str) -> str:
    """Return a problem of a submitted text with the file and line in which it was written.

    Args:
        problem: with ``submission:LINE:COLUMN`` before it.
        asked: the text as it was written.
        sent: the text with what was added to it.
        place: its file; empty: none.
    """
    found = _SENT.match(problem)
    if found is None or not place:
        return problem
    line = int(found["line"])
    behind = line - len(split_lines(sent))
    if behind > 0:  # what should have come there is missing
        return f"{place}:{len(split_lines(asked)) + behind}{problem[found.end() :]}"
    before = 0
    compared = difflib.SequenceMatcher(None, split_lines(asked), split_lines(sent), autojunk=False)
    for tag, here, end, there, sent_end in compared.get_opcodes():
        # an owner in braces comes last in its line, and moves nothing before it
        is_same = tag == "equal" or (tag == "replace" and end - here == sent_end - there)
        if is_same and there < line <= sent_end:
            return f"{place}:{line - there + here}{problem[found.end() :]}"
        if there < line:
            before = end
    if line == 0:
        return f"{place}{problem[found.end() :]}"
    # It is in what was added: told of the line behind which that comes, without the column.
    return f"{place}:{max(1, before)}:{problem[found.end() + 1 :].partition(':')[2]}"


def name_from(words: str, suffix: str) -> str:
    """Return a job name from ``words`` (such as a program's name) and a unique ``suffix``."""
    stem = _NOT_IN_NAMES.sub("-", words.lower()).strip("-") or "job"
    return f"{stem[: 62 - len(suffix)].rstrip('-')}-{suffix}"
