"""How a message is declared: one readable class a message, versions said on the fields.

Purpose: the vocabulary (types, decorators, field specifiers) in which every message and record of the
protocol is written down, and the reflection the codec compiler works from. Importing a declaration costs next
to nothing: constructors, comparisons and codecs are made when they are first used.

Rules: a declaration is data and never changes at run time; nothing here reads or writes bytes. A declared
class is slotted, is constructed by keyword, has a default for every field, and compares by value. Stateless.

A message::

    @message(api_key=12, versions="0-4", flexible="4+")
    class HeartbeatRequest:
        '''A group member says that it is alive.'''

        group_id: String
        generation_id: Int32
        member_id: String
        group_instance_id: NullableString = since(3, default=None)

    HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    HeartbeatRequest.API_KEY, .VALID_VERSIONS (a range), .NAME

Types: Bool Int8 Int16 UInt16 Int32 Int64 Float64 UuidField (16 raw bytes), String Bytes Records, the
same three as NullableString NullableBytes NullableRecords, a struct's class, ``list[...]`` of any of them,
and ``... | None`` on a list or a struct for a nullable one. Records are bytes on the way out and a memoryview
of the input, not a copy, on the way in.

Nested structs, defaults, versions, tags::

    @struct
    class Topic:
        name: String = until(12, default="")              # versions 0 to 12
        topic_id: UuidField = since(13, default=ZERO_UUID)  # 13 and later
        offset: Int64 = -1                                # in every version, with a default of its own
        error: NullableString = between(5, 7, default=None, ignorable=True)
        partitions: list[Int32]                           # implied default: [], "", 0, False, zero uuid

    @data(versions="0-2", flexible="0+", api_key=3)       # records of a log: no request, no response
    class PartitionRecord:
        topics: list[Topic] | None = field(nullable="1+")       # null only from version 1
        leader_recovery_state: Int8 = tagged(0, default=0)      # tag 0, every version
        directories: list[UuidField] = tagged(1, since=2, default=[])   # tag 1 from version 2
        state: ReplicaState = tagged(2, default=ReplicaState)  # one that has all of its own defaults

``ignorable`` is Kafka's: a value that the chosen version cannot carry is dropped; without it, encoding a
non-default value raises. The type checker asks for every field that shows no default; at run time all have
one. A generic caller that the checker should follow uses ``schema_of(cls)`` for what the class says.

The classes behind declarations: `dataclasses` writes and compiles three functions per class at import; with six
hundred structs that is most of a second. Here a class is made with its slots only, and compiles its constructor on the
first call.
"""

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar, dataclass_transform, get_args, get_origin

from ottla.model.ids import ZERO_UUID, Uuid

T = TypeVar("T")
Versions = tuple[int, int]  # first and last, both included
LAST = 0x7FFF  # the open end of "3+": api versions are int16
EVERY: Versions = (0, LAST)
NONE: Versions = (1, 0)
# Proofs and keys, wherever they are a field: in no log and no trace.
SECRET_FIELDS = frozenset(
    {
        "auth_bytes",
        "hmac",
        "request_data",
        "response_data",
        "salt",
        "salted_password",
        "server_key",
        "stored_key",
    }
)
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


class Primitive(NamedTuple):
    """A scalar of the protocol; those of a fixed size have a `struct` format."""

    name: str
    format: str
    size_bytes: int
    default: Any


class Array(NamedTuple):
    """A list of one kind of element."""

    element: "Kind"


Kind = Primitive | Array | type

BOOL = Primitive("bool", "?", 1, False)
INT8 = Primitive("int8", "b", 1, 0)
INT16 = Primitive("int16", "h", 2, 0)
UINT16 = Primitive("uint16", "H", 2, 0)
INT32 = Primitive("int32", "i", 4, 0)
INT64 = Primitive("int64", "q", 8, 0)
FLOAT64 = Primitive("float64", "d", 8, 0.0)
UUID = Primitive("uuid", "16s", 16, ZERO_UUID)
STRING = Primitive("string", "", 0, "")
BYTES = Primitive("bytes", "", 0, b"")
RECORDS = Primitive("records", "", 0, b"")

Buffer = bytes | bytearray | memoryview

Bool = Annotated[bool, BOOL]
Int8 = Annotated[int, INT8]
Int16 = Annotated[int, INT16]
UInt16 = Annotated[int, UINT16]
Int32 = Annotated[int, INT32]
Int64 = Annotated[int, INT64]
Float64 = Annotated[float, FLOAT64]
UuidField = Annotated[Uuid, UUID]
String = Annotated[str, STRING]
Bytes = Annotated[bytes, BYTES]
Records = Annotated[Buffer, RECORDS]
NullableString = Annotated[str | None, STRING]
NullableBytes = Annotated[bytes | None, BYTES]
NullableRecords = Annotated[Buffer | None, RECORDS]


class FieldSpec(NamedTuple):
    """What the right-hand side of a field says; a bare default is a spec with nothing else."""

    default: Any = MISSING
    versions: Versions = EVERY
    nullable: Versions | None = None
    tag: int | None = None
    ignorable: bool = False


class Field(NamedTuple):
    """A field as the codec compiler and the tests see it."""

    name: str
    kind: Kind
    default: Any
    versions: Versions
    nullable: Versions
    tag: int | None
    ignorable: bool

    def is_in(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable_in(self, version: int) -> bool:
        return self.nullable[0] <= version <= self.nullable[1]


class Schema:
    """What is known of one declared class: its place in the protocol and its fields."""

    __slots__ = ("_fields", "api_key", "cls", "flexible_from", "name", "role", "specs", "versions")

    def __init__(self, cls: type, role: str, specs: dict[str, FieldSpec]) -> None:
        self.cls = cls
        self.name = cls.__name__
        self.role = role
        self.specs = specs
        self.api_key: int | None = None
        self.versions = range(0)
        self.flexible_from: int | None = None
        self._fields: tuple[Field, ...] | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields in the order of the wire, resolved on first use."""
        if self._fields is None:
            hints = inspect.get_annotations(self.cls, eval_str=True)
            self._fields = tuple(_resolve(name, hints[name], spec) for name, spec in self.specs.items())
        return self._fields

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


def field(
    *,
    default: Any = MISSING,
    versions: str = "0+",
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> Any:
    """A field in full; the others are short forms of it."""
    return FieldSpec(default, parse_versions(versions), nullable and parse_versions(nullable), tag, ignorable)  # type: ignore[arg-type]


def since(first: int, *, default: Any = MISSING, nullable: str | None = None, ignorable: bool = False) -> Any:
    """A field that came with version `first`."""
    return field(default=default, versions=f"{first}+", nullable=nullable, ignorable=ignorable)


def until(last: int, *, default: Any = MISSING, nullable: str | None = None, ignorable: bool = False) -> Any:
    """A field that went after version `last`."""
    return field(default=default, versions=f"0-{last}", nullable=nullable, ignorable=ignorable)


def between(
    first: int, last: int, *, default: Any = MISSING, nullable: str | None = None, ignorable: bool = False
) -> Any:
    """A field of the versions `first` to `last`."""
    return field(default=default, versions=f"{first}-{last}", nullable=nullable, ignorable=ignorable)


def tagged(
    tag: int, *, since: int = 0, default: Any = MISSING, nullable: str | None = None, ignorable: bool = False
) -> Any:
    """A tagged field (KIP-482): on the wire only when it differs from its default."""
    return field(default=default, versions=f"{since}+", nullable=nullable, tag=tag, ignorable=ignorable)


def parse_versions(text: str) -> Versions:
    """Reads "3", "3+", "0-4" or "none"."""
    if text == "none":
        return NONE
    if text.endswith("+"):
        return int(text[:-1]), LAST
    first, _, last = text.partition("-")
    return int(first), int(last or first)


@dataclass_transform(kw_only_default=True, field_specifiers=(field, since, until, between, tagged))
def message(*, api_key: int, versions: str, flexible: str = "none") -> Callable[[type[T]], type[T]]:
    """Declares a request or a response; which of the two, its name says."""

    def declare(cls: type[T]) -> type[T]:
        role = "response" if cls.__name__.endswith("Response") else "request"
        return _declare(cls, role, api_key, versions, flexible)

    return declare


@dataclass_transform(kw_only_default=True, field_specifiers=(field, since, until, between, tagged))
def data(
    *, versions: str, flexible: str = "none", api_key: int | None = None
) -> Callable[[type[T]], type[T]]:
    """Declares what is stored rather than asked: a record of a log, a snapshot's header."""

    def declare(cls: type[T]) -> type[T]:
        return _declare(cls, "data", api_key, versions, flexible)

    return declare


@dataclass_transform(kw_only_default=True, field_specifiers=(field, since, until, between, tagged))
def struct(cls: type[T]) -> type[T]:
    """Declares a part of messages; its fields' versions are those of the message it is in."""
    return _declare(cls, "struct", None, "0+", "none")


def schema_of(cls: type) -> Schema:
    """The schema of a declared class."""
    schema: Schema = cls.SCHEMA  # type: ignore[attr-defined]
    return schema


def is_declared(cls: object) -> bool:
    return isinstance(getattr(cls, "SCHEMA", None), Schema)


def _declare(cls: type[T], role: str, api_key: int | None, versions: str, flexible: str) -> type[T]:
    names = list(inspect.get_annotations(cls))
    specs = {name: _spec(cls.__dict__.get(name, MISSING)) for name in names}
    made: Any = build_class(cls, names)
    schema = Schema(made, role, specs)
    schema.api_key = api_key
    first, last = parse_versions(versions)
    schema.versions = range(first, last + 1) if last != LAST else range(first, first)
    flexible_versions = parse_versions(flexible)
    schema.flexible_from = None if flexible_versions == NONE else flexible_versions[0]
    made.SCHEMA = schema
    made.NAME, made.API_KEY, made.VALID_VERSIONS = schema.name, api_key, schema.versions
    made.ENCODERS, made.DECODERS, made.BOUNDED_DECODERS = {}, {}, {}
    result: type[T] = made
    return result


def _spec(value: Any) -> FieldSpec:
    return value if isinstance(value, FieldSpec) else FieldSpec(value)


def _resolve(name: str, hint: Any, spec: FieldSpec) -> Field:
    kind, may_be_null = _kind(hint)
    default = spec.default
    if default is MISSING or default is kind:
        default = implied_default(kind)
    nullable = (spec.nullable or spec.versions) if may_be_null else NONE
    assert may_be_null or spec.nullable is None, f"{name}: nullable versions on a type that is not nullable"
    return Field(name, kind, default, spec.versions, nullable, spec.tag, spec.ignorable)


def _kind(hint: Any) -> tuple[Kind, bool]:
    """The kind behind an annotation, and whether it admits None."""
    if get_origin(hint) is Annotated:
        python_type, kind = get_args(hint)[:2]
        return kind, type(None) in get_args(python_type)
    if get_origin(hint) is list:
        return Array(_kind(get_args(hint)[0])[0]), False
    if is_declared(hint):
        return hint, False
    choices = [choice for choice in get_args(hint) if choice is not type(None)]
    assert len(choices) == 1, f"not a type of the protocol: {hint!r}"
    return _kind(choices[0])[0], True


def implied_default(kind: Kind) -> Any:
    """What a field without a default of its own starts as: zero, empty, false, or a struct of such."""
    if isinstance(kind, Primitive):
        return kind.default
    return [] if isinstance(kind, Array) else kind()


# --- the classes behind declarations: slots, and a constructor, comparison and repr made when first used


def build_class(cls: type, names: list[str]) -> type:
    """The slotted twin of a declaration's class body."""
    body = {key: value for key, value in cls.__dict__.items() if key not in names}
    body.pop("__dict__", None)
    body.pop("__weakref__", None)
    body.update(
        __slots__=tuple(names),
        __init__=_first_init,
        __eq__=_first_eq,
        __hash__=None,
        __repr__=_repr,
        __match_args__=(),
        __qualname__=cls.__qualname__,
    )
    return type(cls)(cls.__name__, cls.__bases__, body)


def _first_init(self: Any, **values: Any) -> None:
    cls = type(self)
    cls.__init__ = make_init(cls)
    cls.__init__(self, **values)


def make_init(cls: Any) -> Any:
    """Compiles `__init__(self, *, a=..., b=...)`; lists and structs are made anew for each instance."""
    scope: dict[str, Any] = {"MISSING": MISSING}
    parameters, body = [], []
    for field in cls.SCHEMA.fields:
        name, default = field.name, field.default
        scope[f"d_{name}"] = default
        if isinstance(default, list) or hasattr(default, "SCHEMA"):
            fresh = "[]" if isinstance(default, list) else f"c_{name}()"
            scope[f"c_{name}"] = type(default)
            parameters.append(f"{name}=MISSING")
            body.append(f"self.{name} = {fresh} if {name} is MISSING else {name}")
        else:
            parameters.append(f"{name}=d_{name}")
            body.append(f"self.{name} = {name}")
    star = ["*", *parameters] if parameters else []
    source = f"def __init__({', '.join(['self', *star])}):\n    " + "\n    ".join(body or ["pass"])
    exec(compile(source, f"<constructor of {cls.__name__}>", "exec"), scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _first_eq(self: Any, other: object) -> Any:
    cls: Any = type(self)
    cls.__eq__ = make_eq(cls)
    return cls.__eq__(self, other)


def make_eq(cls: Any) -> Any:
    """Equal when of one class and equal in every field."""
    if not cls.__slots__:
        return lambda self, other: type(other) is cls or NotImplemented
    values = attrgetter(*cls.__slots__)

    def __eq__(self: Any, other: object) -> Any:
        if type(other) is not cls:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _repr(self: Any) -> str:
    parts = (
        f"{name}={'[hidden]' if name in SECRET_FIELDS else repr(getattr(self, name))}"
        for name in type(self).__slots__
    )
    return f"{type(self).__qualname__}({', '.join(parts)})"
