"""Reads and writes S3 buckets for copy workers, by the library ``obstore``.

Only a copy worker that needs a bucket imports the library, so the agent never pays for it. Reads
have a time limit, and temporary failures are retried.
"""

import contextlib
import datetime as dt
import hashlib
from collections.abc import Iterator
from typing import Any

from reconciler.model.values.text_lines import split_lines

CHUNK_BYTES = 2**20
#: Larger objects are sent in parts of at least this size, of which a service accepts 10,000.
PART_BYTES, PARTS_MAX = 8 * 2**20, 9_000
#: Parts of one object that are sent at the same time; this limits memory.
TOGETHER_MAX = 2
CONNECT_S, READ_S = 10, 60
RETRIES_MAX, RETRY_S = 4, 60
_SAID_CHARACTERS_MAX = 200


class BucketError(Exception):
    """An operation that a service refused, or that did not reach it."""


class Bucket:
    """A bucket, with a prefix of its objects' names.

    Args:
        store: ``storage.ObjectStore`` as a mapping.
        keys: access key and secret key; empty for access without credentials.

    Raises:
        BucketError: the library is not installed, or refuses these settings.
    """

    def __init__(self, store: dict[str, str], keys: tuple[str, str]) -> None:
        try:
            import obstore  # noqa: PLC0415 - see above
            from obstore import store as stores  # noqa: PLC0415
        except ImportError:
            raise BucketError(
                "this node's agent has no library for buckets; install muster-cluster[agent,data]"
            ) from None
        self._library: Any = obstore
        self._prefix = store.get("prefix", "")
        self._where = f"{store['endpoint']}/{store['bucket']}"
        signed: dict[str, Any] = {"skip_signature": True}
        if keys[0]:
            signed = {"access_key_id": keys[0], "secret_access_key": keys[1]}
        trusted = store.get("ca_certificate", "")
        try:
            self._store = stores.S3Store(
                store["bucket"],
                endpoint=store["endpoint"],
                region=store.get("region") or "us-east-1",
                virtual_hosted_style_request=False,
                client_options={
                    "allow_http": store["endpoint"].startswith("http://"),
                    "connect_timeout": f"{CONNECT_S}s",
                    "read_timeout": f"{READ_S}s",
                    # of a whole object: the copy has its own time limit
                    "timeout": "365d",
                    **({"root_certificate": trusted} if trusted else {}),
                },
                retry_config={
                    "max_retries": RETRIES_MAX,
                    "retry_timeout": dt.timedelta(seconds=RETRY_S),
                },
                **signed,
            )
        except Exception as problem:  # the library raises errors of its own without a common type
            raise BucketError(f"{self._where}: {_said(problem)}") from None

    def list(self, path: str, most: int) -> tuple[bool, list[tuple[str, int, str]]]:
        """Return True if ``path`` is a single object, and (name below it, bytes, tag) of the
        objects there.

        Raises:
            BucketError: there is nothing, or more than ``most``, or it cannot be read.
        """
        below = self._name(path)
        found: list[tuple[str, int, str]] = []
        start = f"{below}/" if below else ""
        with self._asking(start):
            for one in (one for some in self._library.list(self._store, below) for one in some):
                name = one["path"].removeprefix(start)
                if name in {"", below} or (one["size"] == 0 and name.endswith("/")):
                    continue  # some tools represent folders like this
                if len(found) >= most:
                    raise BucketError(f"{self._where}/{start} has more than {most} objects")
                found.append((name, int(one["size"]), one["e_tag"] or ""))
        if found:
            return False, sorted(found)
        if not below:
            raise BucketError(f"{self._where} is empty")
        with self._asking(below):
            one = self._library.head(self._store, below)
        return True, [(below.rpartition("/")[2], int(one["size"]), one["e_tag"] or "")]

    def read(self, path: str, name: str, tag: str, *, single: bool) -> Iterator[bytes]:
        """Yield the contents of an object in chunks.

        Raises:
            BucketError: it cannot be read, or has changed since it was listed.
        """
        below = self._name(path)
        full = below if single else f"{below}/{name}" if below else name
        digest = hashlib.md5(usedforsecurity=False)
        with self._asking(full):
            answer = self._library.get(self._store, full, options={"if_match": tag} if tag else {})
            if _bare(answer.meta["e_tag"] or tag) != _bare(tag):
                raise BucketError(f"{self._where}/{full} was changed meanwhile")
            for chunk in answer.stream(min_chunk_size=CHUNK_BYTES):
                data = bytes(chunk)
                digest.update(data)
                yield data
        if _is_digest(tag) and digest.hexdigest() != _bare(tag):
            raise BucketError(f"{self._where}/{full}: its checksum is not that of what has come")

    def write(self, path: str, stream: Any, size: int) -> None:
        """Create an object of ``size`` bytes.

        Raises:
            BucketError: it was not stored completely.
        """
        full = self._name(path)
        counted = _Counted(stream)
        whole = size <= PART_BYTES
        with self._asking(full):
            result = self._library.put(
                self._store,
                full,
                b"".join(counted) if whole else iter(counted),
                use_multipart=not whole,
                chunk_size=max(PART_BYTES, size // PARTS_MAX),
                max_concurrency=TOGETHER_MAX,
            )
        tag = result["e_tag"] or ""
        if counted.size != size:
            raise BucketError(f"{self._where}/{full}: the file was changed meanwhile")
        if whole and _is_digest(tag) and _bare(tag) != counted.digest.hexdigest():
            raise BucketError(f"{self._where}/{full}: its checksum is not that of what was sent")

    def _name(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    @contextlib.contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Turn errors of the library and the service into short ones."""
        try:
            yield
        except (BucketError, GeneratorExit):
            raise
        except FileNotFoundError:
            raise BucketError(f"{self._where}/{name}: there is no such object") from None
        except PermissionError as problem:
            raise BucketError(f"{self._where}/{name}: not allowed: {_said(problem)}") from None
        except Exception as problem:  # the same
            if type(problem).__name__ == "PreconditionError":
                raise BucketError(f"{self._where}/{name} was changed meanwhile") from None
            raise BucketError(f"{self._where}/{name}: {_said(problem)}") from None


class _Counted:
    """A stream of chunks that counts what was read."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.size = 0
        self.digest = hashlib.md5(usedforsecurity=False)

    def __iter__(self) -> Iterator[bytes]:
        while data := self._stream.read(CHUNK_BYTES):
            self.size += len(data)
            self.digest.update(data)
            yield data


def _bare(tag: str) -> str:
    return tag.strip('"').lower()


def _is_digest(tag: str) -> bool:
    """Return True if a tag is an object's checksum. Tags of objects uploaded in parts are not."""
    bare = _bare(tag)
    return len(bare) == 32 and all(c in "0123456789abcdef" for c in bare)


def _said(problem: Exception) -> str:
    """Return an error in one line, without details of the request."""
    lines = split_lines(str(problem)) or [type(problem).__name__]
    code, _, rest = str(problem).partition("<Code>")[2].partition("</Code>")
    if code:
        message = rest.partition("<Message>")[2].partition("</Message>")[0]
        return f"{code}: {message}"[:_SAID_CHARACTERS_MAX].strip(": ")
    return lines[0].partition("?")[0][:_SAID_CHARACTERS_MAX]
