"""Runs scenario documents from files, and reports by folder what agrees and what does not."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from reconciler.desired.documents import yaml_reader
from reconciler.simulation.scenarios import known_differences, runner, schema

#: The most files of one call.
FILES_MAX = 100_000
#: Message about a file that can't be read to its end.
_NO_FILE = "is no file, but a device, a pipe or a socket: name a file or a folder"


class PathError(Exception):
    """There is nothing to run at a path; says which."""


class Diverging(msgspec.Struct, frozen=True):
    """A document whose states differ from the expected ones.

    ``expected`` and ``found`` are by job or task; ``found`` has ``*`` for a document that could not
    be run. ``meant`` is the reason of an intended difference.
    """

    file: str
    expected: dict[str, dict[str, Any]]
    found: dict[str, dict[str, Any]]
    meant: str | None = None


class FolderScores(msgspec.Struct):
    """Figures of one folder: documents, those exact in states and nodes, those in states.

    ``elsewhere`` are files whose states agree on other nodes than expected.
    """

    total: int = 0
    exact: int = 0
    states: int = 0
    diverging: list[Diverging] = []
    elsewhere: list[str] = []


class ScenarioReport(msgspec.Struct, frozen=True):
    """Results of all folders by name, and what is wrong with documents that can't be read."""

    folders: dict[str, FolderScores]
    errors: list[str]

    @property
    def agrees(self) -> bool:
        """True if every document agrees in states or is listed as an intended difference."""
        kinds = (one.meant for folder in self.folders.values() for one in folder.diverging)
        return not self.errors and all(kinds)


def find(paths: Iterable[Path]) -> list[Path]:
    """Files at the paths, those in folders and below included, sorted.

    Raises:
        PathError: there is nothing at a path, nothing that can be read as a file, or far too much.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            named = sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml"))
            inside = [one for one in named if not one.is_dir()]
            if not inside:
                raise PathError(f"no .yaml file in {path} or below it")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise PathError(f"{path} {_NO_FILE if path.exists() else 'does not exist'}")
    if len(found) > FILES_MAX:
        raise PathError(f"{len(found)} files; expected at most {FILES_MAX}")
    return list(dict.fromkeys(found))


def run(files: Iterable[Path], meant: dict[str, str] | None = None) -> ScenarioReport:
    """Run each file's documents.

    Args:
        files: as of :func:`find`.
        meant: divergences on purpose, by ``FOLDER/FILE``; None: those of the project.
    """
    reasons = known_differences.MEANT if meant is None else meant
    report = ScenarioReport(folders={}, errors=[])
    for path in files:
        name = Path(os.path.abspath(path)).parent.name  # noqa: PTH100 - a link keeps its name
        folder = report.folders.setdefault(name, FolderScores())
        for verdict in _documents(path, report.errors):
            folder.total += 1
            folder.exact += verdict.exact
            folder.states += verdict.states
            if not verdict.states:
                why = reasons.get(f"{name}/{path.name}")
                folder.diverging.append(Diverging(path.name, verdict.expected, verdict.found, why))
            elif not verdict.exact:
                folder.elsewhere.append(path.name)
    return report


def _documents(path: Path, errors: list[str]) -> Iterator[runner.ScenarioVerdict]:
    try:
        data = _read(path)
        documents = yaml_reader.read(data)
    except PathError as error:
        errors.append(f"{path} {error}")
        yield _could_not_run(f"refused: it {error}")
        return
    except yaml_reader.YamlError as error:
        errors.append(f"{path}:{error}")
        yield _could_not_run(f"refused: {error}")
        return
    if not documents:
        errors.append(f"{path}: it holds no document")
    for number, document in enumerate(documents):
        try:
            yield runner.run(schema.parse(document.value))
        except schema.ScenarioError as error:
            place = _place(data, number, error.where)
            errors.append(f"{path}:{place.line}:{place.column}: {error}")
            yield _could_not_run(f"refused: {error}")
        except Exception as error:
            yield _could_not_run(f"broke: {type(error).__name__}: {error}")


def _read(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        PathError: it can't be read; the message says why.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise PathError(_NO_FILE)
    try:
        return path.read_bytes()
    except OSError as error:
        raise PathError(f"can't be read: {error.strerror}") from error


def _could_not_run(why: str) -> runner.ScenarioVerdict:
    return runner.ScenarioVerdict(exact=False, states=False, found={"*": {"state": why}})


def _place(data: bytes, number: int, where: str) -> yaml_reader.LineColumn:
    """Return where a dotted path is in a document. An unexpected field is named by its key."""
    path: list[str | int] = []
    for step in where.replace("[", ".[").split("."):
        if step.startswith("["):
            inner = step.strip("[]")
            path.append(int(inner) if inner.isdecimal() else inner)
        elif step:
            path.append(step)
    positions = yaml_reader.positions(data)[number]
    return positions.of(tuple(path), key=True)
