"""Values with the schemas of a registry: Confluent's frame around Avro, Protobuf and JSON, read and written.

Reading: the frame names the writer's schema. Avro is resolved from it to the reader's; a Protobuf message is read by
the reader's descriptor, as its wire format is made for, once the writer's is known to be of the same name; JSON is
Spark's parser on what follows the frame. The reader's schema is the declared one, else the newest of the subject when
the run starts. Writing: the schema is registered (or looked up) once, in the driver, while the plan is built.

Rules: what is wrong with a value (no frame, an id that the registry does not have, a schema that does not fit) is an
error of that value. A registry that is away is an error of the task: no record is set aside for it. So all ids of a
batch are asked for before the first value is decoded; one that is unknown is asked for once more after a moment, since
the node of a registry that answers may be behind the one that gave the id out. A stream with dead letters is two
queries, and what is found out about an id holds for both (verdicts.py).

Nothing here needs Spark until columns are asked for: `ottla consume` and `produce` use the same writers' schemas.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ottla.client.registry.client import (
    AVRO,
    JSON,
    PROTOBUF,
    Reference,
    RegistryClient,
    RegistryError,
    RegistrySettings,
    RegistrySettingsError,
    RegistryUnavailableError,
    Schema,
    UnknownSchemaError,
    registry_client,
)
from ottla.client.registry.framing import (
    FRAME_BYTES,
    FrameError,
    frame,
    read_indexes,
    schema_id,
    write_indexes,
)
from ottla.spark.pipeline.declare import DeclarationError, Topic, did_you_mean
from ottla.spark.pipeline.quality import changes
from ottla.spark.pipeline.values import avro, protobuf
from ottla.spark.pipeline.values.json import JsonCodec, json_codec
from ottla.spark.pipeline.values.json_schema import columns_of, schema_of
from ottla.spark.pipeline.values.proto_text import ProtoError, Unsupported, parse_proto, write_proto
from ottla.spark.pipeline.values.rows import Decode, arrow_udf, decoded, encode_column
from ottla.spark.pipeline.values.verdicts import Book, Verdicts

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

UNKNOWN_WAIT_S = 1.0
MAX_DECODERS = 1000
FORMS = {"avro": AVRO, "protobuf": PROTOBUF, "json": JSON}
BY_TOPIC, BY_RECORD, BY_BOTH = "TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"
STRATEGIES = (BY_TOPIC, BY_RECORD, BY_BOTH)
PROTO_TEXT = "schema.proto"
_NAMED = ("record", "error", "enum", "fixed")
# What a name of a file provokes; other errors are the machine's.
_OF_NAMES = frozenset({errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR})
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def registry_codec(
    topic: Topic, form: str, base_dir: Path, *, writing: bool
) -> AvroFramed | ProtobufFramed | JsonFramed:
    """The codec of a topic whose values name schemas of a registry; the registry is not asked yet."""
    if form not in FORMS:
        raise DeclarationError(f"registry: needs format='avro', 'protobuf' or 'json', not {form!r}")
    if topic.registry is None or not isinstance(topic.registry, str):
        raise DeclarationError("registry: takes an address, e.g. 'http://127.0.0.1:8081'")
    try:
        client = registry_client(RegistrySettings.of(topic.registry, topic.registry_options))
    except RegistrySettingsError as error:
        raise DeclarationError(f"registry: {error}") from None
    _check_subject(topic, writing=writing)
    if form == "avro":
        return AvroFramed(client, topic, base_dir, writing=writing)
    if form == "protobuf":
        return ProtobufFramed(client, topic, base_dir, writing=writing)
    return JsonFramed(client, topic, writing=writing)


def _check_subject(topic: Topic, *, writing: bool) -> None:
    subject = topic.subject
    if subject is None:
        return
    if not isinstance(subject, str) or not subject:
        raise DeclarationError(f"subject: takes a strategy ({', '.join(STRATEGIES)}) or a name")
    if subject.endswith("Strategy") and subject not in STRATEGIES:
        hint = did_you_mean(subject, STRATEGIES)
        raise DeclarationError(f"subject: {subject!r} is none of {', '.join(STRATEGIES)}{hint}")
    if subject in (BY_RECORD, BY_BOTH) and topic.schema is None and not writing:
        raise DeclarationError(
            f"subject: {subject} needs schema=, which has the record's name, or a subject's name"
        )


def subject_of(strategy: str | None, topic: str, record: str) -> str:
    """Under which subject the schema of a topic's values is."""
    if strategy is None or strategy == BY_TOPIC:
        return f"{topic}-value"
    if strategy == BY_RECORD:
        return record
    return f"{topic}-{record}" if strategy == BY_BOTH else strategy


def registered(client: RegistryClient, subject: str, schema: Schema) -> int:
    """The id of a schema under a subject: registered, unless the settings say that others do that."""
    if client.settings.auto_register:
        return client.register(subject, schema)
    try:
        return client.lookup(subject, schema).id
    except UnknownSchemaError as error:
        raise UnknownSchemaError(f"{error}; auto.register is false, so somebody has to register it") from None


# -- the writers' schemas --------------------------------------------------------------------------------------------


def avro_schema(client: RegistryClient, schema: Schema) -> Any:
    """An Avro schema as data, with all that it refers to inside it."""
    try:
        return self_contained(
            json.loads(schema.text), [json.loads(one.text) for one in client.referenced(schema).values()]
        )
    except (ValueError, RecursionError) as error:
        raise DeclarationError(
            f"the registry's Avro schema cannot be read: {avro.error_text(error)}"
        ) from None


def self_contained(schema: Any, others: Iterable[Any]) -> Any:
    """The first use of a name that one of the others defines, replaced by its definition."""
    definitions: dict[str, Any] = {}
    for other in others:
        _collect(other, "", definitions)
    return _inlined(schema, "", definitions, set()) if definitions else schema


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    name = str(schema.get("name", ""))
    space = str(schema.get("namespace") or namespace)
    return name if "." in name or not space else f"{space}.{name}"


def _collect(schema: Any, namespace: str, found: dict[str, Any]) -> None:
    """Named types at the top of a schema (and in a union there): what others can refer to."""
    for one in schema if isinstance(schema, list) else [schema]:
        if isinstance(one, dict) and "name" in one and one.get("type") in _NAMED:
            found[_full_name(one, namespace)] = one


def _inlined(schema: Any, namespace: str, definitions: dict[str, Any], done: set[str]) -> Any:
    if isinstance(schema, list):
        return [_inlined(one, namespace, definitions, done) for one in schema]
    if isinstance(schema, str):
        name = schema if "." in schema or not namespace else f"{namespace}.{schema}"
        name = name if name in definitions else schema
        if name not in definitions or name in done:
            return schema
        return _inlined(definitions[name], "", definitions, done)
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if "name" in schema and schema.get("type") in _NAMED:
        full = _full_name(schema, namespace)
        done.add(full)
        # Spelt out: where it is put, another namespace may be in force.
        made["name"], namespace = full, full.rpartition(".")[0]
        made.pop("namespace", None)
    if isinstance(schema.get("fields"), list):
        made["fields"] = [
            {**one, "type": _inlined(one.get("type"), namespace, definitions, done)}
            if isinstance(one, dict)
            else one
            for one in schema["fields"]
        ]
    for key in ("type", "items", "values"):
        if key in schema and (
            key != "type" or not isinstance(schema[key], str) or schema[key] in definitions
        ):
            made[key] = _inlined(schema[key], namespace, definitions, done)
    return made


def descriptors_of(client: RegistryClient, schema: Schema) -> tuple[bytes, str] | None:
    """A Protobuf schema as a descriptor set, and the name of its own file in it; None where all there is is text that
    only protoc reads, and there is none."""
    plain = client.by_id(schema.id) if schema.id else schema
    try:
        return _described(plain, client.referenced(plain))
    except Unsupported:
        pass
    if plain.id:
        # Confluent's compiles for whoever asks so; others give the text all the same.
        asked = client.by_id(plain.id, serialized=True)
        with contextlib.suppress(Unsupported):
            return _described(asked, client.referenced(asked, serialized=True))
    return _compiled_text(client, plain)


def _described(schema: Schema, others: dict[str, Schema]) -> tuple[bytes, str]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files = [_file_descriptor(one.text, name) for name, one in others.items()]
    name = f"schema-{schema.id}.proto"
    made = FileDescriptorSet(file=[*files, _file_descriptor(schema.text, name)])
    return made.SerializeToString(), name


def _file_descriptor(text: str, name: str) -> Any:
    """The text of a .proto file, or a descriptor in base64, which some registries keep as they were given it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        try:
            return parse_proto(text, name)
        except Unsupported:
            raise
        except ProtoError as error:
            raise DeclarationError(f"the registry's schema: {error}") from None
    file.name = name
    return file


def _compiled_text(client: RegistryClient, schema: Schema) -> tuple[bytes, str] | None:
    if shutil.which("protoc") is None:
        return None
    texts = {name: one.text for name, one in client.referenced(schema).items()} | {PROTO_TEXT: schema.text}
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory).resolve()
        for name, text in texts.items():
            path = (top / name).resolve()
            if not path.is_relative_to(top) or "\0" in name:
                raise DeclarationError(
                    f"the registry's schema refers to {name!r}, which is no name of a file"
                )
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                if error.errno not in _OF_NAMES:
                    raise
                raise DeclarationError(
                    f"the registry's schema refers to {name!r}: {error.strerror}"
                ) from None
        return protobuf.compiled(top / PROTO_TEXT), PROTO_TEXT


def message_at(descriptors: bytes, file_name: str, indexes: Iterable[int]) -> str:
    """The full name of the message at a place in a file."""
    file = _file_named(descriptors, file_name)
    names, inside = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if index >= len(inside):
            raise FrameError(f"names message {index} of a schema that has {len(inside)}")
        names.append(inside[index].name)
        inside = inside[index].nested_type
    return ".".join(names)


def place_of(descriptors: bytes, message: str) -> tuple[Any, list[int]]:
    """The file that a message is in, and its place there."""
    for file in protobuf.file_set(descriptors).file:
        prefix = f"{file.package}." if file.package else ""
        if message.startswith(prefix):
            place = _place(file.message_type, message.removeprefix(prefix).split("."))
            if place is not None:
                return file, place
    raise DeclarationError(f"message: there is no {message!r} in the schema")


def _place(messages: Any, names: list[str]) -> list[int] | None:
    for index, message in enumerate(messages):
        if message.name == names[0]:
            if len(names) == 1:
                return [index]
            inner = _place(message.nested_type, names[1:])
            return None if inner is None else [index, *inner]
    return None


def _file_named(descriptors: bytes, name: str) -> Any:
    return next(file for file in protobuf.file_set(descriptors).file if file.name == name)


def register_protobuf(client: RegistryClient, subject: str, descriptors: bytes, message: str) -> bytes:
    """Register a message's file, what it imports first; what stands before each payload."""
    file, place = place_of(descriptors, message)
    files = {one.name: one for one in protobuf.file_set(descriptors).file}
    schema = _with_imports(client, file, files, {})
    return frame(registered(client, subject, schema)) + write_indexes(place)


def _with_imports(
    client: RegistryClient, file: Any, files: dict[str, Any], done: dict[str, Reference]
) -> Schema:
    """A file as a schema; its imports are under subjects of their own names, as Confluent's serializers put them."""
    references = []
    for name in file.dependency:
        if name.startswith("google/protobuf/") or name not in files:
            continue
        if name not in done:
            schema = _with_imports(client, files[name], files, done)
            registered(client, name, schema)
            done[name] = Reference(name, name, client.lookup(name, schema).version)
        references.append(done[name])
    try:
        text = write_proto(file)
    except Unsupported:
        # Confluent's takes a descriptor too; not every registry does.
        text = base64.b64encode(file.SerializeToString(deterministic=True)).decode()
    return Schema(PROTOBUF, text, tuple(references))


# -- decoding --------------------------------------------------------------------------------------------------------


class Reading(Protocol):
    """How values of one topic are read, whatever schema they were written with; pickled into tasks."""

    client: RegistryClient
    kind: str

    @property
    def key(self) -> str:
        """What tells it from others of the same client."""

    def decoder(self, schema: Schema) -> Decoder:
        """For whole values, frames and all, of one writer's schema."""


class Decoder(NamedTuple):
    """What to do with values of one writer's schema."""

    decode: Decode
    # How the writer's schema differs from the reader's (`changes`); None where that is not known.
    difference: Callable[[bytes], str | None] = lambda value: None


class Place(NamedTuple):
    """A record's value, or the beginning of it, and where it is in its topic."""

    value: bytes
    partition: int
    offset: int


_decoders: dict[tuple[RegistrySettings, str, str, int], Decoder] = {}


class Prepared:
    """What decodes the values of a batch: all that a registry has to say of their ids has been asked.

    RegistryError where it cannot say it. With `verdicts` it is said once, for this query and for another.
    """

    def __init__(
        self, places: Iterable[Place | None], reading: Reading, verdicts: Verdicts | None = None
    ) -> None:
        self._reading = reading
        self._verdicts = verdicts if verdicts is not None and verdicts.is_kept() else None
        self._has_waited = False
        self._decoders: dict[bytes, Decoder] = {}
        self._limits: dict[bytes, dict[int, int]] = {}  # up to where an id was unknown, by partition
        unsettled: dict[int, bytes] = {}
        last = _last_places(places)
        for head in last:
            try:
                number = schema_id(head)
            except FrameError as error:
                self._decoders[head] = _refusing(str(error))
                continue
            if self._verdicts is None:
                self._decoders[head] = self._asked(number)
            elif self._verdicts.is_settled(number):
                self._decoders[head] = self._certain(number)
            else:
                unsettled[number] = head
        if unsettled and self._verdicts is not None:
            with self._verdicts.book() as book:
                for number, head in unsettled.items():
                    self._decoders[head] = self._judged(number, last[head], book)
                    if number in book.known:
                        self._limits[head] = book.refused.get(number, {})

    def decode(self, place: Place) -> dict[str, Any]:
        """ValueError, or whatever else a value provokes."""
        head = place.value[:FRAME_BYTES]
        if self.is_refused(place):
            raise ValueError(
                f"has schema id {schema_id(head)}, which was unknown to the registry when it came"
            )
        return self._decoders[head].decode(place.value)

    def is_refused(self, place: Place) -> bool:
        """Whether it came before its id was known."""
        return place.offset <= self._limits.get(place.value[:FRAME_BYTES], _NO_LIMITS).get(
            place.partition, -1
        )

    def difference(self, place: Place) -> str | None:
        return self._decoders[place.value[:FRAME_BYTES]].difference(place.value)

    def _judged(self, number: int, last: dict[int, int], book: Book) -> Decoder:
        if number in book.known:
            return self._certain(number)
        try:
            decoder = self._known(number)
        except UnknownSchemaError as error:
            book.refuse(number, last)
            return _refusing(_naming(number, error))
        book.know(number)
        return decoder

    def _certain(self, number: int) -> Decoder:
        """Of an id that was known: what was said of its records cannot be taken back."""
        try:
            return self._known(number, certain=True)
        except UnknownSchemaError as error:
            raise RegistryUnavailableError(
                f"{error}, but it was known: register it again, or wait for the registry's other nodes"
            ) from None

    def _asked(self, number: int) -> Decoder:
        try:
            return self._known(number)
        except UnknownSchemaError as error:
            return _refusing(_naming(number, error))

    def _known(self, number: int, *, certain: bool = False) -> Decoder:
        """UnknownSchemaError when it has been asked for twice, or (unless it is `certain`) just a moment ago."""
        fresh = certain or not self._reading.client.is_unknown(number)
        try:
            return decoder_of(number, self._reading)
        except UnknownSchemaError:
            if not fresh:
                raise
            if not self._has_waited:
                time.sleep(UNKNOWN_WAIT_S)
                self._has_waited = True
            return decoder_of(number, self._reading, again=True)


_NO_LIMITS: dict[int, int] = {}


def _last_places(places: Iterable[Place | None]) -> dict[bytes, dict[int, int]]:
    """The frames there are, and for each the furthest offset by partition."""
    found: dict[bytes, dict[int, int]] = {}
    for place in places:
        if place is not None:
            last = found.setdefault(place.value[:FRAME_BYTES], {})
            if place.offset > last.get(place.partition, -1):
                last[place.partition] = place.offset
    return found


def decoder_of(number: int, reading: Reading, *, again: bool = False) -> Decoder:
    """What decodes values of a schema's id. A schema that cannot be used makes one that refuses."""
    key = (reading.client.settings, reading.kind, reading.key, number)
    made = _decoders.get(key)
    if made is not None:
        return made
    schema = reading.client.by_id(number, again=again)
    if schema.kind != reading.kind:
        made = _refusing(
            f"has schema id {number}, which is {schema.kind} in the registry, not {reading.kind}"
        )
    else:
        try:
            made = reading.decoder(schema)
        except (RegistryError, OSError, MemoryError, subprocess.TimeoutExpired):
            raise  # of this machine (protoc wants room on a disk, a process, time), and so the task's
        except Exception as error:  # noqa: BLE001 - whatever a writer's schema provokes is an error of its values
            made = _refusing(f"has schema id {number}, whose schema cannot be used: {avro.error_text(error)}")
    if len(_decoders) >= MAX_DECODERS:
        _decoders.clear()
    _decoders[key] = made
    return made


def _naming(number: int, error: Exception) -> str:
    """The registry's answer, said of a value."""
    text, own = str(error), f"schema id {number} is "
    return (
        f"has {own[:-4]}, which is {text.removeprefix(own)}"
        if text.startswith(own)
        else f"has {own[:-4]}: {text}"
    )


def _refusing(reason: str) -> Decoder:
    def refuse(value: bytes) -> dict[str, Any]:
        raise ValueError(reason)

    return Decoder(refuse)


class AvroReading:
    """Records of any writer's schema, as the reader's."""

    kind = AVRO

    def __init__(self, client: RegistryClient, reader: str) -> None:
        self.client = client
        self.key = reader

    def decoder(self, schema: Schema) -> Decoder:
        writer = avro.without_unknown(avro_schema(self.client, schema))
        reader = json.loads(self.key)
        if not isinstance(writer, dict) or writer.get("type") not in ("record", "error"):
            raise ValueError("a record is expected at the top")
        difference = _avro_difference(writer, reader)
        if writer == reader:
            return Decoder(avro.decoder(writer, start=FRAME_BYTES), lambda value: difference)
        # The record as such is what is asked for, whatever its writer calls it.
        aliases = [*reader.get("aliases", []), writer["name"], str(writer["name"]).rpartition(".")[2]]
        decode = avro.decoder(writer, {**reader, "aliases": aliases}, FRAME_BYTES)

        def resolved(value: bytes) -> dict[str, Any]:
            try:
                return decode(value)
            except ValueError:
                raise
            except Exception as error:  # noqa: BLE001 - fastavro's are of many kinds, and long
                text = str(error)
                short = "its record does not fit" if text.startswith("Schema mismatch: {") else text
                raise ValueError(
                    f"of schema id {schema.id} cannot be read by the reader's schema: {short}"
                ) from None

        return Decoder(resolved, lambda value: difference)


def _avro_difference(writer: dict[str, Any], reader: dict[str, Any]) -> str:
    written = {field["name"] for field in writer["fields"]}
    wanted = {field["name"]: {field["name"], *field.get("aliases", ())} for field in reader["fields"]}
    known = set().union(*wanted.values())
    return changes.of_names(
        [field["name"] for field in writer["fields"] if field["name"] not in known],
        [name for name, names in wanted.items() if not names & written],
    )


class ProtobufReading:
    """Messages of one name, by the reader's descriptor."""

    kind = PROTOBUF

    def __init__(self, client: RegistryClient, descriptors: bytes, message: str) -> None:
        self.client = client
        self._descriptors = descriptors
        self._message = message

    @property
    def key(self) -> str:
        return f"{self._message} {hashlib.sha256(self._descriptors).hexdigest()}"

    def decoder(self, schema: Schema) -> Decoder:
        inner = protobuf.decoder(self._descriptors, self._message)
        written = descriptors_of(self.client, schema)
        names: dict[tuple[int, ...], str] = {}
        difference = None if written is None else self._difference(written[0])

        def decode(value: bytes) -> dict[str, Any]:
            indexes, at = read_indexes(value)
            if written is not None:
                if indexes not in names:
                    names[indexes] = message_at(*written, indexes)
                if names[indexes] != self._message:
                    raise ValueError(f"is a {names[indexes]}, not a {self._message}")
            return inner(value[at:])

        return Decoder(decode, lambda value: difference)

    def _difference(self, written: bytes) -> str | None:
        """By the numbers of fields, which are what counts; None where the writer's file has no message of this name."""
        ours = _fields_by_number(self._descriptors, self._message)
        theirs = _fields_by_number(written, self._message)
        if ours is None or theirs is None:
            return None
        return changes.of_names(
            [name for number, name in theirs.items() if number not in ours],
            [name for number, name in ours.items() if number not in theirs],
        )


def _fields_by_number(descriptors: bytes, message: str) -> dict[int, str] | None:
    try:
        file, place = place_of(descriptors, message)
    except DeclarationError:
        return None
    found, inside = None, file.message_type
    for index in place:
        found = inside[index]
        inside = found.nested_type
    return None if found is None else {field.number: field.name for field in found.field}


class JsonReading:
    """What follows the frame is Spark's to parse: only the id is looked at."""

    kind = JSON
    key = ""

    def __init__(self, client: RegistryClient) -> None:
        self.client = client

    def decoder(self, schema: Schema) -> Decoder:
        return Decoder(lambda value: {})


# -- codecs ----------------------------------------------------------------------------------------------------------


def _with_place(value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct(value.alias("value"), F.col("partition"), F.col("offset"))


def places_of(values: Any) -> list[Place | None]:
    """An Arrow column of values with their places; None for records without a value."""
    columns = (values.field(name).to_pylist() for name in Place._fields)
    return [None if value is None else Place(value, *place) for value, *place in zip(*columns, strict=True)]


class _Decoding:
    """The Arrow UDF's function: framed values, with their places, as struct<data, error, difference>."""

    def __init__(self, reading: Reading, columns: StructType, verdicts: Verdicts | None) -> None:
        self._reading = reading
        self._columns = columns
        self._verdicts = verdicts

    def __call__(self, values: Any) -> Any:
        import pyarrow as pa

        places = places_of(values)
        prepared = Prepared(places, self._reading, self._verdicts)
        made = decoded(places, prepared.decode, self._columns)
        found = pa.array(differences_of(places, prepared), pa.string())
        return pa.StructArray.from_arrays(
            [made.field("data"), made.field("error"), found], ["data", "error", "difference"]
        )


def differences_of(places: Sequence[Place | None], prepared: Prepared) -> list[str | None]:
    """Of the first records of a batch, and of the first of each schema."""
    seen: set[bytes] = set()
    found: list[str | None] = []
    for number, place in enumerate(places):
        look = place is not None and (
            number < changes.FIRST_OF_BATCH or place.value[:FRAME_BYTES] not in seen
        )
        found.append(prepared.difference(place) if look and place is not None else None)
        if look and place is not None:
            seen.add(place.value[:FRAME_BYTES])
    return found


def _decode_column(value: Column, columns: StructType, reading: Reading, verdicts: Verdicts | None) -> Column:
    from pyspark.sql.types import StringType, StructField, StructType

    returned = StructType(
        [
            StructField("data", columns),
            StructField("error", StringType()),
            StructField("difference", StringType()),
        ]
    )
    decoding = _Decoding(reading, columns, verdicts)

    def decode(values: Any) -> Any:
        return decoding(values)

    return arrow_udf(decode, returned, _with_place(value))


def _explained(value: bytes, reading: Reading, otherwise: Callable[[bytes], str]) -> str:
    place = Place(value, 0, 0)
    prepared = Prepared([place], reading)
    try:
        prepared.decode(place)
    except Exception as error:  # noqa: BLE001 - whatever the bytes provoke is the explanation
        return avro.error_text(error)
    return otherwise(value)


def _newest(client: RegistryClient, topic: Topic, kind: str) -> Schema:
    subject = subject_of(topic.subject, topic.name, "")
    try:
        found = client.latest(subject)
    except UnknownSchemaError as error:
        raise UnknownSchemaError(
            f"{error}; give schema=, or subject= where it is under another name"
        ) from None
    if found.kind != kind:
        raise DeclarationError(
            f"subject {subject!r} is {found.kind} in the registry, not {kind}: see format="
        )
    return found


def record_name(topic: str) -> str:
    """A legal name for the record that is derived from the columns of a topic."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", topic)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"


def _field_names(schema: Any) -> Iterator[str]:
    """All names of fields, those of nested records too."""
    if isinstance(schema, list):
        for one in schema:
            yield from _field_names(one)
    elif isinstance(schema, dict):
        for field in schema.get("fields", []):
            yield field["name"]
            yield from _field_names(field["type"])
        for key in ("items", "values"):
            yield from _field_names(schema.get(key))


class AvroFramed:
    """Avro with frames."""

    is_framed = True
    can_fail_to_write = True

    def __init__(self, client: RegistryClient, topic: Topic, base_dir: Path, *, writing: bool) -> None:
        self._client = client
        self._topic = topic
        # As it was declared: what is registered keeps the logical types that Spark has no types for.
        self._given = None if topic.schema is None else avro.read_schema(topic.schema, base_dir)
        self._plain: avro.AvroCodec | None = None
        if self._given is not None or writing:
            self._plain = avro.avro_codec(self._given, base_dir, writing=writing)

    def __getstate__(self) -> dict[str, Any]:
        # A declared schema may be anything, also a class of the file; what workers need of it has been read.
        return {**self.__dict__, "_topic": None}

    @property
    def _codec(self) -> avro.AvroCodec:
        if self._plain is None:
            found = avro_schema(self._client, _newest(self._client, self._topic, AVRO))
            if not isinstance(found, dict):
                raise DeclarationError("the newest schema of the registry is no record, so it has no columns")
            self._plain = avro.avro_codec(found, Path(), writing=False)
        return self._plain

    @property
    def _reading(self) -> AvroReading:
        assert self._codec.schema is not None
        return AvroReading(self._client, self._codec.schema)

    @property
    def columns(self) -> StructType | None:
        return self._codec.columns

    def parse(self, value: Column, verdicts: Verdicts | None = None) -> Column:
        assert self._codec.columns is not None
        return _decode_column(value, avro.nullable(self._codec.columns), self._reading, verdicts)

    def error(self, parsed: Column) -> Column:
        return self._codec.error(parsed)

    def exact_error(self, parsed: Column) -> Column:
        return self.error(parsed)

    def difference(self, value: Column, parsed: Column) -> Column | None:
        return parsed.getField("difference")

    def fields(self, parsed: Column) -> list[Column]:
        return self._codec.fields(parsed)

    def explain(self, value: bytes) -> str:
        return _explained(value, self._reading, lambda _: "does not fit the schema's types")

    def encode(self, row: Column, columns: StructType) -> Column:
        """Registers the schema: the plan is built in the driver, before the query starts."""
        schema, head = self.register(columns)
        return encode_column(row, avro.Make(avro.encoder, schema, head))

    def register(self, columns: StructType) -> tuple[str, bytes]:
        """The schema that rows are written with, and the frame before each."""
        given = self._given or avro.avro_of(columns, record_name(self._topic.name))
        name = _full_name(given, "")
        subject = subject_of(self._topic.subject, self._topic.name, name)
        number = registered(self._client, subject, Schema(AVRO, json.dumps(given)))
        return json.dumps(avro.without_unknown(given)), frame(number)

    def refuse(self, columns: StructType) -> list[str]:
        found = self._codec.refuse(columns)
        if found or self._given is not None:
            return found
        return [
            f"{name!r} is no name for a field in Avro, which has letters, digits and '_': give it an alias"
            for name in _field_names(avro.avro_of(columns, record_name(self._topic.name)))
            if not _AVRO_NAME.fullmatch(name)
        ]


class ProtobufFramed:
    """Protobuf with frames and message indexes."""

    is_framed = True
    can_fail_to_write = True

    def __init__(self, client: RegistryClient, topic: Topic, base_dir: Path, *, writing: bool) -> None:
        self._client = client
        self._topic = topic
        self._plain: protobuf.ProtobufCodec | None = None
        if topic.schema is not None or writing:
            self._plain = protobuf.protobuf_codec(topic.schema, topic.message, base_dir)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topic": None}

    @property
    def _codec(self) -> protobuf.ProtobufCodec:
        if self._plain is None:
            self._plain = self._newest()
        return self._plain

    def _newest(self) -> protobuf.ProtobufCodec:
        found = descriptors_of(self._client, _newest(self._client, self._topic, PROTOBUF))
        if found is None:
            raise DeclarationError(
                "the registry's Protobuf schema is text that only protoc reads, and there is none here: "
                "give schema= with a descriptor set or a generated class"
            )
        descriptors, file_name = found
        message = self._topic.message
        if message is None:
            file = _file_named(descriptors, file_name)
            if len(file.message_type) != 1:
                names = ", ".join(one.name for one in file.message_type)
                raise DeclarationError(f"message: the registry's schema has {names or 'none'}; say which")
            message = message_at(descriptors, file_name, [0])
        return protobuf.codec_of(descriptors, message)

    @property
    def _reading(self) -> ProtobufReading:
        return ProtobufReading(self._client, self._codec.descriptors, self._codec.message)

    @property
    def columns(self) -> StructType:
        return self._codec.columns

    def parse(self, value: Column, verdicts: Verdicts | None = None) -> Column:
        return _decode_column(value, self._codec.columns, self._reading, verdicts)

    def error(self, parsed: Column) -> Column:
        return self._codec.error(parsed)

    def exact_error(self, parsed: Column) -> Column:
        return self.error(parsed)

    def difference(self, value: Column, parsed: Column) -> Column | None:
        return parsed.getField("difference")

    def fields(self, parsed: Column) -> list[Column]:
        return self._codec.fields(parsed)

    def explain(self, value: bytes) -> str:
        return _explained(value, self._reading, lambda _: "does not fit the message's types")

    def encode(self, row: Column, columns: StructType) -> Column:
        return encode_column(
            row, avro.Make(protobuf.encoder, self._codec.descriptors, self._codec.message, self.register())
        )

    def register(self) -> bytes:
        """What stands before each message."""
        message = self._codec.message
        subject = subject_of(self._topic.subject, self._topic.name, message)
        return register_protobuf(self._client, subject, self._codec.descriptors, message)

    def refuse(self, columns: StructType) -> list[str]:
        return self._codec.refuse(columns)


class JsonFramed:
    """JSON with frames: Spark's parser and writer, and the frame beside them."""

    is_framed = True
    can_fail_to_write = False

    def __init__(self, client: RegistryClient, topic: Topic, *, writing: bool) -> None:
        self._client = client
        self._topic = topic
        self._plain: JsonCodec | None = None
        if topic.schema is not None or writing:
            self._plain = json_codec(topic.schema, writing=writing)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topic": None}

    @property
    def _codec(self) -> JsonCodec:
        if self._plain is None:
            self._plain = JsonCodec(columns_of(_newest(self._client, self._topic, JSON).text))
        return self._plain

    @property
    def columns(self) -> StructType | None:
        return self._codec.columns

    def parse(self, value: Column, verdicts: Verdicts | None = None) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType

        payload = self._codec.parse(_payload(value))
        checking = _FrameErrors(JsonReading(self._client), verdicts)

        def check(values: Any) -> Any:
            return checking(values)

        # Only the frames pass through Python.
        wrong = arrow_udf(check, StringType(), _with_place(F.substring(value, 1, FRAME_BYTES)))
        return F.struct(payload.alias("data"), wrong.alias("frame"))

    def error(self, parsed: Column) -> Column:
        from pyspark.sql import functions as F

        return F.coalesce(parsed.getField("frame"), self._codec.error(parsed.getField("data")))

    def exact_error(self, parsed: Column) -> Column:
        return parsed.getField("frame")

    def difference(self, value: Column, parsed: Column) -> Column | None:
        return self._codec.difference(_payload(value), parsed)

    def fields(self, parsed: Column) -> list[Column]:
        return self._codec.fields(parsed.getField("data"))

    def explain(self, value: bytes) -> str:
        return _explained(
            value, JsonReading(self._client), lambda whole: self._codec.explain(whole[FRAME_BYTES:])
        )

    def encode(self, row: Column, columns: StructType) -> Column:
        from pyspark.sql import functions as F

        plain = self._codec.encode(row, columns)
        framed = F.concat(F.lit(self.register(columns)), plain.getField("value"))
        return F.struct(framed.alias("value"), plain.getField("error").alias("error"))

    def register(self, columns: StructType) -> bytes:
        """What stands before each object."""
        name = record_name(self._topic.name)
        subject = subject_of(self._topic.subject, self._topic.name, name)
        return frame(registered(self._client, subject, Schema(JSON, schema_of(columns, name))))

    def refuse(self, columns: StructType) -> list[str]:
        return self._codec.refuse(columns)


def _payload(value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.substring(value, FRAME_BYTES + 1, 2**31 - 1)


class _FrameErrors:
    """A column of frames as the reasons why they are none, or may not be read; null where they may."""

    def __init__(self, reading: Reading, verdicts: Verdicts | None) -> None:
        self._reading = reading
        self._verdicts = verdicts

    def __call__(self, values: Any) -> Any:
        import pyarrow as pa

        places = places_of(values)
        prepared = Prepared(places, self._reading, self._verdicts)
        reasons: dict[tuple[bytes, bool], str | None] = {}

        def reason(place: Place) -> str | None:
            key = (place.value, prepared.is_refused(place))
            if key not in reasons:
                try:
                    prepared.decode(place)
                    reasons[key] = None
                except Exception as error:  # noqa: BLE001 - the value is what is wrong
                    reasons[key] = str(error)
            return reasons[key]

        return pa.array([None if place is None else reason(place) for place in places], pa.string())
