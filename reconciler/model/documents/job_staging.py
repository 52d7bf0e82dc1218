"""Data of a job as documents say it: what is copied to its nodes before, and from them after."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Duration, Name, doc

StagePath = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?!\.{1,2}(/|$))[A-Za-z0-9_.=+-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9_.=+-]+)*(?!\n)$",
        max_length=1024,
    ),
]
StageTarget = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?!\.{1,2}(/|$))[A-Za-z0-9_.={}+-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9_.={}+-]+)*(?!\n)$",
        max_length=1024,
    ),
]


class StageInSpec(DocumentPart, frozen=True):
    """Data that is copied to the node's own disk before a task starts."""

    volume: Annotated[Name, doc("Volume to copy from.", example="imagenet")]
    path: Annotated[
        StagePath | None,
        doc("File or folder below the volume. Default: all of it.", example="train"),
    ] = None
    name: Annotated[
        Name | None,
        doc(
            "Name by which tasks find it, in `MUSTER_STAGED_NAME`. Default: the volume's.",
            example="train",
        ),
    ] = None
    sha256: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")] | None,
        doc(
            "Checksum of a single file.",
            example="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        ),
    ] = None
    checksums: Annotated[
        StagePath | None,
        doc(
            "File below the path with checksums of the others, as `sha256sum` writes it.",
            example="SHA256SUMS",
        ),
    ] = None


class StageOutSpec(DocumentPart, frozen=True):
    """Results that are copied to a volume when a task has ended."""

    path: Annotated[
        StagePath,
        doc("File or folder below the task's own folder, `$MUSTER_OUT_DIR`.", example="results"),
    ]
    volume: Annotated[Name, doc("Volume to copy to.", example="outputs")]
    to: Annotated[
        StageTarget,
        doc(
            "Folder below the volume; `{job}`, `{run}`, `{element}`, `{group}`, `{index}` "
            "and `{try}` are replaced by the task's own. `{run}` is `$MUSTER_RUN_ID`: the run's "
            "number and a digest of its owner and of what it executes, such as `1-3fa0b2c1`.",
            example="runs/{job}/{index}",
        ),
    ] = "{job}/{run}"
    when: Annotated[
        Literal["success", "always"],
        doc("Copy also the results of failed tasks.", example="always"),
    ] = "success"


class StageSpec(DocumentPart, frozen=True):
    """Data to copy to the nodes before tasks start, and from them when they have ended."""

    inputs: Annotated[
        list[StageInSpec],
        doc("Data to copy in.", example=[{"volume": "imagenet", "path": "train"}]),
    ] = []
    outputs: Annotated[
        list[StageOutSpec],
        doc("Data to copy out.", example=[{"path": "results", "volume": "outputs"}]),
    ] = []
    timeout: Annotated[
        Duration,
        doc("Time limit of copying in, and of copying out.", example="2h", unit="duration"),
    ] = "1h"
