"""meta.properties: whose directory this is (cluster, node, directory), in Java's properties format.

Version 1 is what KRaft writes: version, cluster.id, node.id, directory.id (KIP-858). Version 0 (broker.id) is
only read. LogManager reads one per log directory; `ottla storage format` writes them. The ensemble of all
directories must agree on cluster and node and differ in directory id.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ottla.config.errors import ConfigError
from ottla.config.properties import parse_properties
from ottla.model.ids import METADATA_TOPIC_ID, ZERO_UUID, Uuid, random_uuid, uuid_from_str, uuid_to_str
from ottla.storage.files import replace_small

_T = TypeVar("_T", str, int)

META_PROPERTIES_FILE = "meta.properties"
MAX_META_PROPERTIES_BYTES = 64 * 1024

# Kafka keeps the first hundred ids for itself: unassigned, lost, migrating (KIP-858), the metadata topic.
_RESERVED_PREFIX = bytes(15)
_RESERVED_IDS = 100


class MetaPropertiesError(ValueError):
    """A meta.properties that cannot be used; the message is one line fit for the user."""


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """What one directory says of itself."""

    cluster_id: str | None
    node_id: int | None
    directory_id: Uuid | None
    version: int = 1

    def with_directory_id(self, directory_id: Uuid) -> "MetaProperties":
        return replace(self, directory_id=directory_id)


def is_reserved_directory_id(directory_id: Uuid) -> bool:
    """Ids no directory may have: Kafka gives them meanings."""
    return directory_id[:15] == _RESERVED_PREFIX and directory_id[15] < _RESERVED_IDS


def random_directory_id() -> Uuid:
    """A fresh directory id."""
    directory_id = random_uuid()
    assert directory_id not in (ZERO_UUID, METADATA_TOPIC_ID)
    return directory_id


def _escape(text: str) -> str:
    """What Java writes so that Java reads it back."""
    escaped = re.sub(r"([\\=:#!])", r"\\\1", text)
    return escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def format_meta_properties(meta: MetaProperties) -> bytes:
    """The file's bytes, version 1. No date line: two equal files stay equal."""
    if meta.cluster_id is None or meta.node_id is None:
        raise MetaPropertiesError("meta.properties version 1 needs cluster.id and node.id")
    pairs = {"cluster.id": meta.cluster_id, "version": "1", "node.id": str(meta.node_id)}
    if meta.directory_id is not None:
        pairs["directory.id"] = uuid_to_str(meta.directory_id)
    return ("#\n" + "".join(f"{key}={_escape(value)}\n" for key, value in pairs.items())).encode()


def parse_meta_properties(text: str, source: str) -> MetaProperties:
    """What a file says, either version; MetaPropertiesError names the file and the property."""
    try:
        properties = {key: value for key, value, _ in parse_properties(text)}
    except ConfigError as error:
        raise MetaPropertiesError(f"{source}: {error}") from None
    version = _int_property(properties, "version", source, default=0)
    if version not in (0, 1):
        raise MetaPropertiesError(f"{source}: version {version} is not known (0 or 1)")
    node_key = "node.id" if version == 1 else "broker.id"
    node_id = _int_property(properties, node_key, source, default=None)
    cluster_id = properties.get("cluster.id")
    if version == 1 and (cluster_id is None or node_id is None):
        missing = "cluster.id" if cluster_id is None else "node.id"
        raise MetaPropertiesError(f"{source}: {missing} was not found")
    return MetaProperties(cluster_id, node_id, _directory_id(properties, source), version)


def _int_property(properties: Mapping[str, str], key: str, source: str, default: int | None) -> int | None:
    value = properties.get(key)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError:
        raise MetaPropertiesError(f"{source}: {key}={value} is not a number") from None


def _directory_id(properties: Mapping[str, str], source: str) -> Uuid | None:
    value = properties.get("directory.id")
    if value is None:
        return None
    try:
        return uuid_from_str(value)
    except ValueError as error:
        raise MetaPropertiesError(f"{source}: directory.id: {error}") from None


def read_meta_properties(directory: Path) -> MetaProperties | None:
    """The directory's meta.properties, or None if it is not formatted."""
    path = directory / META_PROPERTIES_FILE
    try:
        with path.open("rb") as file:
            content = file.read(MAX_META_PROPERTIES_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_META_PROPERTIES_BYTES:
        raise MetaPropertiesError(f"{path}: larger than {MAX_META_PROPERTIES_BYTES} bytes")
    # Java reads properties as Latin-1; what it writes beyond ASCII is escaped.
    return parse_meta_properties(content.decode("latin-1"), str(path))


def write_meta_properties(directory: Path, meta: MetaProperties) -> None:
    """Formats the directory; atomic, so a crash leaves it formatted or not."""
    replace_small(directory / META_PROPERTIES_FILE, format_meta_properties(meta))


def verify_ensemble(
    directories: Mapping[Path, MetaProperties], cluster_id: str | None = None, node_id: int | None = None
) -> tuple[str | None, int | None]:
    """Which cluster and node all directories belong to; MetaPropertiesError if they do not agree."""
    seen: dict[Uuid, Path] = {}
    for directory, meta in directories.items():
        cluster_id = _agree(directory, "cluster.id", cluster_id, meta.cluster_id)
        node_id = _agree(directory, "node.id", node_id, meta.node_id)
        if meta.directory_id is not None:
            _check_directory_id(directory, meta.directory_id, seen)
    return cluster_id, node_id


def _agree(directory: Path, key: str, expected: _T | None, found: _T | None) -> _T | None:
    if found is None or expected is None:
        return expected if found is None else found
    if found != expected:
        raise MetaPropertiesError(
            f"{directory / META_PROPERTIES_FILE}: {key} is {found}, expected {expected}; "
            "the directory belongs to another node or cluster"
        )
    return expected


def _check_directory_id(directory: Path, directory_id: Uuid, seen: dict[Uuid, Path]) -> None:
    name = uuid_to_str(directory_id)
    if is_reserved_directory_id(directory_id):
        raise MetaPropertiesError(f"{directory}: directory.id {name} is reserved")
    other = seen.setdefault(directory_id, directory)
    if other != directory:
        raise MetaPropertiesError(f"{directory}: directory.id {name} is also that of {other}")
