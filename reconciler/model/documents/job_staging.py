"""Surroundings of a job: its code, data to copy before and after, and where it was submitted."""

from typing import Annotated, Literal

import msgspec

from reconciler.model.documents.fields import DocumentPart, Duration, Name, doc

Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]
FolderPath = Annotated[str, msgspec.Meta(pattern=r"^/[^\x00-\x1f\x7f]*(?!\n)$", max_length=4096)]
FileNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
BootId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f-]{1,64}(?!\n)$")]
ModuleName = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_/][A-Za-z0-9_.+/@:=~-]*(?!\n)$", max_length=200)
]

CodeDigest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}(?!\n)$")]
CommitId = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})(?!\n)$")]
GitUrl = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^((https|ssh|file)://[!-~]+|[A-Za-z0-9_.][A-Za-z0-9_.-]*@[A-Za-z0-9.-]+:[!-~]+)(?!\n)$",
        max_length=2048,
    ),
]

CodePath = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?!\.{1,2}(/|$))[^\x00-\x1f\x7f/]+(/(?!\.{1,2}(/|$))[^\x00-\x1f\x7f/]+)*(?!\n)$",
        max_length=1024,
    ),
]

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


class FolderSpec(DocumentPart, frozen=True):
    """A folder of the submitter, by what it is and not by its name alone."""

    path: Annotated[FolderPath, doc("Its path.", example="/home/ada/project")]
    device: Annotated[FileNumber, doc("Its device, on that boot.", example=66306)]
    inode: Annotated[FileNumber, doc("Its inode.", example=1835023)]
    boot_id: Annotated[
        BootId,
        doc(
            "Boot of the machine on which device and inode count.",
            example="8ee6fb2c-3bf6-4b7e-9a3b-58c4ce1d0a44",
        ),
    ]
    marker: Annotated[
        Name | None,
        doc(
            "Name of a file in its folder `.muster-submit`, by which other machines recognise the "
            "folder. Default: they never do.",
            example="train-6f3a20",
        ),
    ] = None
    marker_sha256: Annotated[
        Sha256 | None,
        doc(
            "SHA-256 of what that file holds.",
            example="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        ),
    ] = None


class SubmittedSpec(DocumentPart, frozen=True):
    """Where a command was submitted, as `muster run` and `muster submit` write it."""

    folder: Annotated[
        FolderSpec | None,
        doc(
            "The folder. Tasks start in it on nodes that really have it, unless there is a "
            "workingDirectory.",
            example={
                "path": "/home/ada/project",
                "device": 66306,
                "inode": 1835023,
                "bootId": "8e",
            },
        ),
    ] = None
    python: Annotated[
        FolderSpec | None,
        doc(
            "The active virtual or conda environment. Tasks use it on nodes that really have it.",
            example={"path": "/home/ada/venv", "device": 66306, "inode": 1835024, "bootId": "8e"},
        ),
    ] = None


class CodeSpec(DocumentPart, frozen=True):
    """Code that each task starts with: a packed folder, or a commit of a git repository."""

    digest: Annotated[
        CodeDigest | None,
        doc(
            "A folder that `--code` has packed, by what it holds.",
            example="sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        ),
    ] = None
    git: Annotated[
        GitUrl | None,
        doc(
            "Repository that nodes fetch from as the job's user: `https://`, `ssh://`, `file://` "
            "or `USER@HOST:PATH`.",
            example="https://git.example.org/ada/train.git",
        ),
    ] = None
    revision: Annotated[
        CommitId | None,
        doc(
            "Full id of the commit. No branch: it could be moved after the review.",
            example="1f0c7a1e0a3d5b1c9f2e4d6a8b0c2e4f6a8b0c2e",
        ),
    ] = None
    path: Annotated[
        CodePath | None,
        doc(
            "Folder in it that tasks start in. Default: its top.",
            example="experiments/one",
        ),
    ] = None
