"""Reads large texts of submissions in a child process, so that other requests are answered.

The parser of YAML holds the interpreter for as long as one document takes. A text and the structure
in force go to the child; documents or problems come back. The child has limits of time and memory.
"""

import itertools
import resource
import sys
from collections.abc import Sequence

import msgspec
import yaml

from reconciler import child_process, interpreter
from reconciler.model import desired
from reconciler.operations.changes import remote_changes
from reconciler.operations.views import stored_views

#: The longest that reading one text may take.
READ_S_MAX = 30.0
#: The most fields and values of one document: once accepted, it is also parsed for its commit, in
#: the server, which answers nobody meanwhile.
DOCUMENT_NODES_MAX = 10_000
#: The most memory of the child, as address space.
MEMORY_BYTES_MAX = 2 * 2**30
_OUTPUT_BYTES_MAX = 64 * 2**20


class TextRequest(msgspec.Struct, frozen=True):
    """A text, and what ``remote_changes.read`` needs besides.

    ``structure``: its stored view; empty: unknown. ``known``: the dependencies that are jobs; None:
    they are to be asked for.
    """

    text: str
    identity: str
    now: float
    owner: str = ""
    basis: str = ""
    structure: bytes = b""
    known: list[str] | None = None


class TextAnswer(msgspec.Struct, frozen=True):
    """The documents of a text, or why it is refused. ``asked``: dependencies to be looked up."""

    documents: list[remote_changes.SubmittedDocument] = []
    refusal: str = ""
    problems: tuple[desired.Problem, ...] = ()
    asked: list[str] = []


_encode = msgspec.msgpack.Encoder().encode
_DECODE_REQUEST = msgspec.msgpack.Decoder(TextRequest).decode
_DECODE_ANSWER = msgspec.msgpack.Decoder(TextAnswer).decode


def read(
    request: TextRequest, known: remote_changes.Known, *, timeout_s: float = READ_S_MAX
) -> list[remote_changes.SubmittedDocument]:
    """Return the jobs of a text, read in a child.

    Args:
        request: the text.
        known: returns those of some names that are jobs.
        timeout_s: how long it may take.

    Raises:
        InvalidError: anything is wrong with any job, or reading exceeds a limit.
    """
    answer = _ask(request, timeout_s)
    if answer.asked:
        found = list(known(answer.asked))
        if set(answer.asked).difference(found):
            answer = _ask(msgspec.structs.replace(request, known=found), timeout_s)
    if answer.refusal:
        raise remote_changes.InvalidError(answer.refusal, answer.problems)
    return answer.documents


def _ask(request: TextRequest, timeout_s: float) -> TextAnswer:
    done = child_process.run_child(
        child_process.ChildProgram(
            interpreter.module_command(__name__),
            given=_encode(request),
            stdout=child_process.ChildOutput.READ,
        ),
        child_process.ChildLimits(timeout_s, output_bytes_max=_OUTPUT_BYTES_MAX),
    )
    if done.end is not child_process.ChildEnd.EXITED or done.status:
        raise remote_changes.InvalidError(
            f"reading this text takes longer than {timeout_s:g} s or more than "
            f"{MEMORY_BYTES_MAX >> 30} GiB of memory{remote_changes.INVALID}. To fix: send fewer "
            "documents at once"
        )
    return _DECODE_ANSWER(done.stdout)


def _answer(request: TextRequest) -> TextAnswer:
    """Return the answer to a request, in the child."""
    structure = stored_views.stored_structure(request.structure)
    judge = None
    if structure is not None and structure.queues:
        judge = remote_changes.SubmissionValidator(structure)
    asked: list[str] = []

    def known(names: Sequence[str]) -> Sequence[str]:
        if request.known is not None:
            return request.known
        asked.extend(names)
        return names

    try:
        documents = remote_changes.read(
            request.text,
            request.identity,
            judge,
            request.now,
            request.owner,
            known=known,
            basis=request.basis,
        )
    except remote_changes.InvalidError as error:
        return TextAnswer(refusal=str(error), problems=error.problems, asked=asked)
    for one in documents:
        if is_too_large(one.text):
            return TextAnswer(
                refusal=f"Job/{one.name} has more than {DOCUMENT_NODES_MAX} fields and values"
                f"{remote_changes.INVALID}. To fix: put data into a file that the job reads"
            )
    return TextAnswer(documents, asked=asked)


def is_too_large(text: str) -> bool:
    """Return True if a document has too many fields and values to be parsed at one go."""
    if len(text) <= 2 * DOCUMENT_NODES_MAX:  # each takes two characters at least
        return False
    parts = (yaml.ScalarEvent, yaml.AliasEvent, yaml.SequenceStartEvent, yaml.MappingStartEvent)
    nodes = (event for event in yaml.parse(text, yaml.CLoader) if isinstance(event, parts))
    return next(itertools.islice(nodes, DOCUMENT_NODES_MAX, None), None) is not None


def main() -> None:
    """Answer one request from standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    sys.stdout.buffer.write(_encode(_answer(_DECODE_REQUEST(sys.stdin.buffer.read()))))


if __name__ == "__main__":
    main()
