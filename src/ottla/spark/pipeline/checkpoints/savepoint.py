"""Copies of a pipeline's checkpoints to start from: `ottla pipeline savepoint`, `ottla pipeline run --from-savepoint`.

    <savepoint>/savepoint.json    whose it is, when it was made, its queries and how far they were
    <savepoint>/<query>/          a checkpoint as it was: a stream's, or that of its dead letters

Rules: a copy is made of a pipeline that does not run (the caller holds its lock), since offsets, commits and state of a
running one change one after the other. It is whole or not there: made under another name, brought to the disk, then
renamed. It is never changed: a run that starts from it copies it again, into a directory that has no checkpoint yet.

A run from a copy is another life: its queries get ids of their own. What is written exactly once is known by (query id,
batch id): under the old id batches after the copy would be taken for those that the old life has written since, and
left out, and two lives would fence each other's transactions. So all that the old life wrote after the copy is
written again, into whatever `out` names; to move a pipeline, move its directory instead.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.model.durable import fsync_dir, replace_file
from ottla.spark.pipeline.checkpoints import checkpoint
from ottla.spark.pipeline.declare import DeclaredPipeline, listed, local_path
from ottla.spark.pipeline.frames import DEAD_LETTER_SUFFIX
from ottla.spark.progress import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

MANIFEST = "savepoint.json"
FORMAT = 1
MAX_MANIFEST_BYTES = 1_000_000


class SavepointError(Exception):
    """A copy that cannot be made or started from; one line."""


@dataclass(frozen=True)
class Query:
    """A checkpoint in a savepoint."""

    name: str
    query_id: str | None
    batch: int | None
    committed: int | None

    @property
    def is_complete(self) -> bool:
        return self.batch == self.committed


@dataclass(frozen=True)
class Savepoint:
    path: Path
    pipeline: str
    made_ms: int
    queries: tuple[Query, ...]


def save(pipeline: str, checkpoints: Path, to: Path, now_ms: int) -> Savepoint:
    """Copy all checkpoints of a pipeline that does not run; SavepointError if that cannot be."""
    if to.exists() or to.is_symlink():
        raise SavepointError(f"{to} is there already: a savepoint is never written over")
    try:
        there = checkpoint.checkpoints_of(pipeline, checkpoints)
        queries = [_query(path) for path in there]
    except (CheckpointError, OSError) as error:
        raise SavepointError(f"{checkpoints} cannot be read: {error}") from None
    if not any(one.batch is not None for one in queries):
        raise SavepointError(f"{pipeline} has no checkpoints in {checkpoints}: there is nothing to copy")
    made = Savepoint(to, pipeline, now_ms, tuple(queries))
    with _whole(to) as place:
        for path in there:
            _copy(path, place / path.name)
        document = {
            "format": FORMAT, "pipeline": pipeline, "made_ms": now_ms, "queries": [asdict(one) for one in queries]
        }  # fmt: skip
        replace_file(place / MANIFEST, (json.dumps(document, indent=1).encode(),))
    return made


def _query(path: Path) -> Query:
    found = checkpoint.read(path)
    if found is None:
        return Query(path.name, checkpoint.query_id(path), None, None)
    return Query(path.name, found.query_id, found.batch, found.committed)


@contextmanager
def _whole(to: Path) -> Iterator[Path]:
    """A directory under another name, that gets its own when all is in it, and is gone when something went wrong."""
    place = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir()
        yield place
        for directory, _, _ in os.walk(place):
            fsync_dir(Path(directory))
        place.rename(to)
        fsync_dir(to.parent)
    except OSError as error:
        raise SavepointError(f"{to} cannot be written: {error.strerror or error}") from None
    except shutil.Error as error:
        raise SavepointError(f"{to} cannot be written: {error.args[0][0][2]}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    """With its times, since Spark's cleaning looks at names only; on the disk before the directory gets its name."""
    shutil.copy2(source, target, follow_symlinks=False)
    if not os.path.islink(target):
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def read(path: Path) -> Savepoint:
    """What a directory holds; SavepointError if it is none."""
    file = path / MANIFEST
    try:
        if file.stat().st_size > MAX_MANIFEST_BYTES:
            raise ValueError("too large")
        found = json.loads(file.read_text())
        if found["format"] != FORMAT:
            raise SavepointError(f"{file} has the format {found['format']!r}; this version knows {FORMAT}")
        queries = tuple(_query_of(one) for one in found["queries"])
        made = Savepoint(path, str(found["pipeline"]), int(found["made_ms"]), queries)
    except OSError as error:
        raise SavepointError(f"{path} is no savepoint: {file.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise SavepointError(
            f"{path} is no savepoint: {file.name} is not what `pipeline savepoint` writes"
        ) from None
    missing = [one.name for one in queries if not (path / one.name).is_dir()]
    if missing:
        raise SavepointError(f"{path} is not complete: it has no {listed(missing)}")
    return made


def _query_of(found: Mapping[str, Any]) -> Query:
    name = found["name"]
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name:
        raise ValueError(name)
    return Query(name, found["query_id"], found["batch"], found["committed"])


def refuse(checkpoints: str) -> Path:
    """Where the copies go; SavepointError where there are checkpoints already."""
    root = local_path(checkpoints)
    if root is None:
        raise SavepointError(f"a savepoint is copied to a directory of this machine, not to {checkpoints}")
    if root.is_dir() and any(root.iterdir()):
        raise SavepointError(
            f"there are checkpoints in {root} already, and a savepoint is for a first start: `ottla pipeline reset` "
            "sets them aside, --name runs another pipeline"
        )
    return root


def restore(found: Savepoint, pipeline: DeclaredPipeline, checkpoints: str) -> list[str]:
    """Copy what the pipeline's streams have of a savepoint to where they start from; what is worth a word."""
    root = refuse(checkpoints)
    wanted = {name for stream in pipeline.streams for name in (stream.name, stream.name + DEAD_LETTER_SUFFIX)}
    chosen = [one for one in found.queries if one.name in wanted]
    if not chosen:
        raise SavepointError(
            f"{found.path} has no stream of this file: it has {listed(one.name for one in found.queries)}"
        )
    with suppress(FileNotFoundError):
        root.rmdir()  # empty, as was looked at
    try:
        with _whole(root) as place:
            for one in chosen:
                _copy(found.path / one.name, place / one.name)
                _new_life(
                    place / one.name,
                    root / one.name,
                    pipeline.name,
                    0 if one.committed is None else one.committed + 1,
                )
    except CheckpointError as error:
        raise SavepointError(str(error)) from None
    return list(_words(found, chosen, pipeline))


def _words(found: Savepoint, chosen: Sequence[Query], pipeline: DeclaredPipeline) -> Iterator[str]:
    for one in chosen:
        upto = "nothing finished" if one.committed is None else f"micro-batch {one.committed}"
        yield f"{one.name}: starts from {found.path} ({upto}) under another query id"
        if not one.is_complete:
            yield (
                f"{one.name}: micro-batch {one.batch} was begun and not finished then; if its rows had become visible, "
                "they come a second time in the same output"
            )
    names = {one.name for one in chosen}
    anew = [stream.name for stream in pipeline.streams if stream.name not in names]
    if anew:
        yield f"{listed(anew)}: not in {found.path}, begins anew"
    left = [one.name for one in found.queries if one.name not in names]
    if left:
        yield f"{listed(left)}: in {found.path}, and no stream of this file"


def _new_life(path: Path, final: Path, pipeline: str, first_batch: int) -> None:
    """Another query id, another owner, and the places of schema files, which Spark keeps as whole paths."""
    _rewrite(path / "metadata", json.dumps({"id": str(uuid.uuid4())}))
    checkpoint.write_owner(path, pipeline, path.name, first_batch)
    for file in path.glob("state/*/_metadata/v2/*"):
        if not file.name.isdecimal():
            continue
        head, _, text = file.read_text(errors="replace").partition("\n")
        try:
            about = json.loads(text)
            for store in about["stateStoreInfo"]:
                # As Hadoop spells a path, which is no URL: a space in it is a space.
                place = final.absolute() / "state" / file.parts[-4] / "_stateSchema" / store["storeName"]
                store["stateSchemaFilePaths"] = [
                    f"file:{place}/" + str(schema).rsplit("/", 1)[-1]
                    for schema in store.get("stateSchemaFilePaths") or []
                ]
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"{file} cannot be read: it is not what Spark 4 writes") from None
        _rewrite(file, f"{head}\n{json.dumps(about)}")


def _rewrite(file: Path, text: str) -> None:
    replace_file(file, (text.encode(),))
    for checksum in (f".{file.name}.crc", f"{file.name}.crc"):
        (file.parent / checksum).unlink(missing_ok=True)  # of what was there before
