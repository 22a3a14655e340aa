"""Protobuf values: messages by a descriptor, through the package `protobuf` in an Arrow UDF.

A descriptor comes from a descriptor set, a .proto file or a generated class, and becomes Spark columns: uint32 is
bigint and uint64 decimal(20,0), since Spark has no unsigned types; an enum is its name; Timestamp is timestamp; the
wrappers are columns that may be null. A field without presence is its default where it was not sent, one with
presence is null.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.model.install import install
from ottla.spark.pipeline.declare import DeclarationError, did_you_mean, listed
from ottla.spark.pipeline.values.json import differences, no_text
from ottla.spark.pipeline.values.proto_text import ProtoError, Unsupported, parse_proto
from ottla.spark.pipeline.values.rows import Decode, Encode, decode_column, encode_column

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from ottla.spark.pipeline.values.verdicts import Verdicts

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Read = Callable[[Any], dict[str, Any]]
MAX_DESCRIPTOR_BYTES = 16_000_000
PROTOC_TIMEOUT_S = 60
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Int32", "UInt32", "Int64", "UInt64", "Float", "Double", "String", "Bytes")
)


def protobuf_codec(schema: Any, message: str | None, base_dir: Path) -> ProtobufCodec:
    """By a descriptor set, a .proto file or a generated class."""
    try:
        if schema is None:
            raise DeclarationError(
                "format='protobuf' needs a schema: a descriptor set (.desc), a .proto file or a class"
            )
        return codec_of(*read_descriptors(schema, message, base_dir))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("google"):
            raise
        raise DeclarationError(f"format='protobuf' needs the package protobuf: {install('spark')}") from None


def codec_of(descriptors: bytes, message: str) -> ProtobufCodec:
    """By a descriptor set that has been read."""
    return ProtobufCodec(descriptors, message, spark_columns(message_class(descriptors, message).DESCRIPTOR))


class ProtobufCodec:
    """Messages of one type."""

    is_framed = False
    can_fail_to_write = True

    def __init__(self, descriptors: bytes, message: str, columns: StructType) -> None:
        self.descriptors = descriptors
        self.message = message
        self._columns = columns

    @property
    def columns(self) -> StructType:
        return self._columns

    def parse(self, value: Column, verdicts: Verdicts | None = None) -> Column:
        return decode_column(value, self._columns, _Make(decoder, self.descriptors, self.message))

    def error(self, parsed: Column) -> Column:
        return parsed.getField("error")

    def exact_error(self, parsed: Column) -> Column:
        return no_text()

    def difference(self, value: Column, parsed: Column) -> Column | None:
        return None  # such a value says nothing of its writer's schema

    def fields(self, parsed: Column) -> list[Column]:
        return [parsed.getField("data").getField(name).alias(name) for name in self._columns.names]

    def encode(self, row: Column, columns: StructType) -> Column:
        return encode_column(row, _Make(encoder, self.descriptors, self.message))

    def refuse(self, columns: StructType) -> list[str]:
        """A message need not be filled: columns may be fewer than its fields."""
        from pyspark.sql.types import StructType

        given = set(columns.names)
        return differences(StructType([f for f in self._columns.fields if f.name in given]), columns)

    def explain(self, value: bytes) -> str:
        try:
            decoder(self.descriptors, self.message)(value)
        except Exception as error:  # noqa: BLE001 - whatever the bytes provoke is the explanation
            return " ".join(str(error).split())
        return "does not fit the message's types"


class _Make:
    """A codec's worker side, made of the descriptors once it is there."""

    def __init__(self, make: Callable[[bytes, str], Any], descriptors: bytes, message: str) -> None:
        self._make = make
        self._descriptors = descriptors
        self._message = message

    def __call__(self) -> Any:
        return self._make(self._descriptors, self._message)


_classes: dict[tuple[bytes, str], Any] = {}


def _class(descriptors: bytes, message: str) -> Any:
    """A worker lives for many batches, and making a class is slow; there are as many as schemas."""

    found = _classes.get((descriptors, message))
    if found is None:
        found = _classes[descriptors, message] = message_class(descriptors, message)
    return found


def decoder(descriptors: bytes, message: str) -> Decode:
    """From bytes to a row."""
    from google.protobuf.message import DecodeError

    kind = _class(descriptors, message)
    read = _reader(kind.DESCRIPTOR)

    def decode(value: bytes) -> dict[str, Any]:
        try:
            found = kind.FromString(value)
        except DecodeError as error:
            raise ValueError(f"is no {message}: {error}") from None
        return read(found)

    return decode


def _reader(descriptor: Any) -> Read:
    """Built once a message type: what to do with each field is not asked again for each record."""
    plan = [(field.name, field.has_presence, _get(field)) for field in descriptor.fields]

    def read(message: Any) -> dict[str, Any]:
        return {
            name: None if presence and not message.HasField(name) else get(getattr(message, name))
            for name, presence, get in plan
        }

    return read


def _get(field: FieldDescriptor) -> Callable[[Any], Any]:

    if is_map(field):
        get = _get_one(field.message_type.fields_by_name["value"])
        key = _get_one(field.message_type.fields_by_name["key"])
        return lambda entries: [(key(name), get(entries[name])) for name in entries]
    one = _get_one(field)
    return (lambda items: [one(item) for item in items]) if field.is_repeated else one


def _get_one(field: FieldDescriptor) -> Callable[[Any], Any]:

    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return _to_datetime
        if message.full_name in WRAPPERS:
            inner = _get_one(message.fields_by_name["value"])
            return lambda wrapper: inner(wrapper.value)
        return _reader(message)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # An open enum (proto3) may hold a number that this schema has no name for.
        return lambda number: names.get(number, str(number))
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Decimal
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _to_datetime(stamp: Any) -> datetime:
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def encoder(descriptors: bytes, message: str, prefix: bytes = b"") -> Encode:
    """From a row to bytes; a null is a field that is not set."""
    kind = _class(descriptors, message)

    def encode(row: dict[str, Any]) -> bytes:
        made = kind()
        _fill(made, row, "")
        data: bytes = made.SerializeToString(deterministic=True)
        return prefix + data

    return encode


def _fill(message: Any, row: dict[str, Any], path: str) -> None:
    for name, value in row.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        where = f"{path}.{name}" if path else name
        oneof = field.containing_oneof
        if oneof is not None and (other := message.WhichOneof(oneof.name)) is not None:
            # Protobuf would take the other's value away, without a word.
            raise ValueError(f"field {where!r} and {other!r} are both set: one of {oneof.name!r} may be")
        try:
            _set(message, field, value, where)
        except (TypeError, ValueError, KeyError) as error:
            if str(error).startswith("field "):
                raise
            raise ValueError(f"field {where!r}: {error}") from None


def _set(message: Any, field: FieldDescriptor, value: Any, where: str) -> None:

    if is_map(field):
        target, entry = getattr(message, field.name), field.message_type.fields_by_name
        kind = entry["value"]
        for name, item in value.items():
            key = _scalar(entry["key"], name)
            if kind.message_type is not None:
                _set_message(target[key], kind.message_type, item, where)
            else:
                target[key] = _scalar(kind, item)
    elif field.is_repeated:
        target = getattr(message, field.name)
        for item in value:
            if field.message_type is not None:
                _set_message(target.add(), field.message_type, item, where)
            else:
                target.append(_scalar(field, item))
    elif field.message_type is not None:
        target = getattr(message, field.name)
        target.SetInParent()
        _set_message(target, field.message_type, value, where)
    else:
        setattr(message, field.name, _scalar(field, value))


def _set_message(target: Any, descriptor: Any, value: Any, where: str) -> None:

    if descriptor.full_name == TIMESTAMP:
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        target.seconds, target.nanos = micros // 1_000_000, micros % 1_000_000 * 1000
    elif descriptor.full_name in WRAPPERS:
        target.value = _scalar(descriptor.fields_by_name["value"], value)
    else:
        _fill(target, value, where)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        found = field.enum_type.values_by_name.get(value)
        if found is not None:
            return found.number
        number = None if field.enum_type.is_closed else _unnamed(value)
        if number is None:
            raise ValueError(f"{value!r} is no {field.enum_type.full_name}")
        return number
    return int(value) if isinstance(value, Decimal) else value


def _unnamed(value: Any) -> int | None:
    """The number that a reader found no name for, which goes on as it came; None for any other text."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if str(number) == value and -(2**31) <= number < 2**31 else None


def read_descriptors(schema: Any, message: str | None, base_dir: Path) -> tuple[bytes, str]:
    """A serialised FileDescriptorSet, and the full name of the message."""
    descriptor = getattr(schema, "DESCRIPTOR", None)
    if descriptor is not None and hasattr(descriptor, "full_name"):
        return _set_of(descriptor.file), message or descriptor.full_name
    if not isinstance(schema, str):
        raise DeclarationError(
            f"schema: Protobuf takes a descriptor set (.desc), a .proto file or a generated class, "
            f"not {type(schema).__name__}"
        )
    path = base_dir / schema
    if not path.is_file():
        raise DeclarationError(f"schema: there is no file {schema!r} (a descriptor set, or a .proto file)")
    if path.stat().st_size > MAX_DESCRIPTOR_BYTES:
        raise DeclarationError(f"schema {schema}: larger than {MAX_DESCRIPTOR_BYTES:,} bytes")
    data = compiled(path) if path.suffix == ".proto" else path.read_bytes()
    return data, message or _only_message(data, schema)


def _set_of(file: Any) -> bytes:
    """A file's descriptor with all that it imports, dependencies first."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    found: dict[str, Any] = {}

    def add(one: Any) -> None:
        if one.name not in found:
            for dependency in one.dependencies:
                add(dependency)
            found[one.name] = one

    add(file)
    made = FileDescriptorSet()
    for one in found.values():
        one.CopyToProto(made.file.add())
    data: bytes = made.SerializeToString()
    return data


def compiled(path: Path) -> bytes:
    """A .proto file and what it imports, as a descriptor set."""
    try:
        return _compiled_here(path)
    except Unsupported as error:
        protoc = shutil.which("protoc")
        if protoc is None:
            raise DeclarationError(
                f"schema {error}, and there is no protoc here; give a descriptor set "
                f"(protoc --include_imports --descriptor_set_out={path.stem}.desc {path.name})"
            ) from None
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.desc"
        done = subprocess.run(
            [protoc, f"-I{path.parent}", "--include_imports", f"--descriptor_set_out={out}", str(path)],
            capture_output=True,
            text=True,
            timeout=PROTOC_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise DeclarationError(f"schema {path.name}: {' '.join(done.stderr.split())}")
        return out.read_bytes()


def _compiled_here(path: Path) -> bytes:
    """Imports are found from the file's own directory, as `protoc -I` has it; Protobuf's own are known."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    found: dict[str, Any] = {}

    def add(name: str, imported_by: str) -> None:
        if name in found or _well_known(name) is not None:
            return
        try:
            with open(path.parent / name, "rb") as file:
                data = file.read(MAX_DESCRIPTOR_BYTES + 1)
            if len(data) > MAX_DESCRIPTOR_BYTES:
                raise DeclarationError(f"schema {name}: larger than {MAX_DESCRIPTOR_BYTES:,} bytes")
            found[name] = parse_proto(data.decode(), name)
        except OSError as error:
            raise DeclarationError(f"schema {imported_by}: imports {name!r}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise DeclarationError(f"schema {name}: is no text") from None
        except Unsupported:
            raise
        except ProtoError as error:
            raise DeclarationError(f"schema {error}") from None
        for dependency in found[name].dependency:
            add(dependency, name)

    add(path.name, path.name)
    made = FileDescriptorSet(file=_ordered(FileDescriptorSet(file=found.values())))
    data: bytes = made.SerializeToString()
    return data


def _only_message(data: bytes, schema: str) -> str:
    names = message_names(data)
    if len(names) == 1:
        return names[0]
    raise DeclarationError(f"message: {schema} has {listed(names)}; say which")


def message_names(data: bytes) -> list[str]:
    """The messages at the top of the files of a set, those of Protobuf's own files left out."""
    found = []
    for file in file_set(data).file:
        if not file.name.startswith("google/protobuf/"):
            prefix = f"{file.package}." if file.package else ""
            found += [prefix + message.name for message in file.message_type]
    return found


def file_set(data: bytes) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorSet.FromString(data)
    except DecodeError:
        raise DeclarationError("schema: is no descriptor set (protoc --descriptor_set_out)") from None


def message_class(data: bytes, name: str) -> Any:
    """The class of a message, made of its descriptors alone."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in _ordered(file_set(data)):
        try:
            pool.Add(file) if not hasattr(pool, "AddSerializedFile") else pool.AddSerializedFile(
                file.SerializeToString()
            )
        except TypeError as error:
            raise DeclarationError(
                f"schema: {' '.join(str(error).split())} (was the set made with --include_imports?)"
            ) from None
    try:
        return GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        known = message_names(data)
        raise DeclarationError(
            f"message: there is no {name!r}; there is {listed(known)}{did_you_mean(name, known)}"
        ) from None


def _ordered(files: Any) -> list[Any]:
    """Dependencies first; those that a set leaves out of Protobuf's own files are taken from the package."""
    by_name = {file.name: file for file in files.file}
    done: dict[str, Any] = {}

    def add(name: str) -> None:
        if name in done:
            return
        file = by_name.get(name) or _well_known(name)
        if file is None:
            return  # the pool says which one is missing
        done[name] = file
        for dependency in file.dependency:
            add(dependency)
        done[name] = done.pop(name)

    for name in by_name:
        add(name)
    return list(done.values())


def _well_known(name: str) -> Any:
    if not name.startswith("google/protobuf/"):
        return None
    import importlib

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    module = "google.protobuf." + name.removeprefix("google/protobuf/").removesuffix(".proto") + "_pb2"
    try:
        file = importlib.import_module(module).DESCRIPTOR
    except ModuleNotFoundError:
        return None
    made = FileDescriptorProto()
    file.CopyToProto(made)
    return made


def spark_columns(descriptor: Descriptor) -> StructType:
    """A message as columns."""
    return _struct(descriptor, (), "")


def _struct(descriptor: Descriptor, inside: tuple[str, ...], path: str) -> StructType:
    from pyspark.sql.types import StructField, StructType

    if descriptor.full_name in inside:
        raise DeclarationError(f"schema: field {path!r} contains itself, which Spark has no type for")
    deeper = (*inside, descriptor.full_name)
    return StructType(
        [
            StructField(field.name, _field(field, deeper, f"{path}.{field.name}" if path else field.name))
            for field in descriptor.fields
        ]
    )


def _field(field: FieldDescriptor, inside: tuple[str, ...], path: str) -> DataType:
    from pyspark.sql.types import ArrayType, MapType

    if is_map(field):
        entry = field.message_type.fields_by_name
        return MapType(_single(entry["key"], inside, path), _single(entry["value"], inside, path))
    kind = _single(field, inside, path)
    return ArrayType(kind) if field.is_repeated else kind


def is_map(field: FieldDescriptor) -> bool:
    """A map is a repeated message of its own kind on the wire."""
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _single(field: FieldDescriptor, inside: tuple[str, ...], path: str) -> DataType:
    from pyspark.sql import types

    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return types.TimestampType()
        if message.full_name in WRAPPERS:
            return _single(message.fields_by_name["value"], inside, path)
        return _struct(message, inside, path)
    simple = {
        field.CPPTYPE_INT32: types.IntegerType(),
        field.CPPTYPE_INT64: types.LongType(),
        field.CPPTYPE_UINT32: types.LongType(),
        field.CPPTYPE_UINT64: types.DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: types.DoubleType(),
        field.CPPTYPE_FLOAT: types.FloatType(),
        field.CPPTYPE_BOOL: types.BooleanType(),
        field.CPPTYPE_ENUM: types.StringType(),
    }
    if field.type == field.TYPE_BYTES:
        return types.BinaryType()
    return simple.get(field.cpp_type, types.StringType())
