"""Compiles the codecs of one message in one version to straight-line Python functions.

Purpose: `compile_encoder(cls, version)` gives `f(out, message)`, which appends to the bytearray `out`;
`compile_decoder(cls, version)` gives `f(buf, p, end) -> (message, p)`. Nested structs are written inline, loops only
where the wire has arrays, and a run of fixed-size fields is a single `pack` or `unpack_from`, straight from or into the
message's attributes, together with the length that follows it: that is where most of a compiled codec's speed comes
from.

Rules: encoding, a field that the version lacks must hold its default unless it is ignorable; that is checked. Decoding,
the buffer is any bytes-like object indexable to ints; a count or a length is compared with the bytes left before
anything is made of it. A bounded decoder also counts what it makes: `f(buf, p, end, left) -> (message, p, left)` may
make `left` elements of arrays and tags, all together, and gives back how many it might still have made. Values of the
wrong type surface as struct.error, TypeError or AttributeError, short input as IndexError or struct.error;
`ottla.wire.codec`, which keeps the results, turns them into WireError.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from struct import Struct, pack, unpack_from
from typing import Any

from ottla.wire import primitives
from ottla.wire.schema import Array, Field, Kind, Primitive, schema_of

SMALL = 16  # arrays of numbers below this length (replicas, in-sync replicas) have a packer for each length


@cache
def small_structs(method: str, length_format: str, format: str) -> tuple[Any, ...]:
    """`pack` or `unpack_from` for arrays of 0 to SMALL - 1 numbers, after a length if one is packed with them."""
    return tuple(getattr(Struct(f">{length_format}{n}{format}"), method) for n in range(SMALL))


class Source:
    """The text of one function in the making: its lines, its constants, and fresh local names.

    `build` is the one place where text becomes a function.
    """

    def __init__(self, signature: str) -> None:
        self._lines = [f"def codec({signature}):"]
        self._depth = 1
        self._names = 0
        self.constants: dict[str, Any] = {}

    def add(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """Lines added inside are indented under `opening`; an empty block gets its `pass`."""
        self.add(opening)
        self._depth += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.add("pass")
        self._depth -= 1

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        """A name for a value that the function uses."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(prefix.upper() + "_")
        self.constants[name] = value
        return name

    def struct_method(self, method: str, format: str) -> str:
        """A name for `Struct(format).pack` or `.unpack_from`, one for each format."""
        name = f"{method}_{format.replace('?', 'T')}"
        self.constants.setdefault(name, getattr(Struct(">" + format), method))
        return name

    def build(self, title: str, helpers: dict[str, Any]) -> Callable[..., Any]:
        text = "\n".join(self._lines)
        scope = {**helpers, **self.constants}
        exec(compile(text, f"<{title}>", "exec"), scope)
        function: Callable[..., Any] = scope["codec"]
        function.__doc__ = text  # to read what was compiled: print(codec.__doc__)
        return function


# --- encoders


_ENCODER_HELPERS: dict[str, Any] = {
    "pack": pack,
    **{
        name: getattr(primitives, name)
        for name in ("not_in_version", "put_string_length", "put_tag", "put_uvarint")
    },
}


def compile_encoder(cls: type, version: int) -> Callable[..., Any]:
    """The encoder of `cls` in `version`."""
    schema = schema_of(cls)
    compiler = _Encoder(version, schema.is_flexible(version))
    compiler.message(cls)
    return compiler.source.build(f"encoder of {schema.name} v{version}", _ENCODER_HELPERS)


class _Encoder:
    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.out = "out"
        self.source = Source("out, message")
        self._run: list[tuple[str, str]] = []  # fixed-size values not written yet: expression, format

    def message(self, cls: type) -> None:
        self.struct(cls, "message")
        self._flush()
        self.source.add("return")

    # -- fixed-size runs

    def _fixed(self, expression: str, format: str) -> None:
        self._run.append((expression, format))

    def _flush(self) -> None:
        if not self._run:
            return
        if len(self._run) == 1 and self._run[0] in (("0", "b"), ("", "x")):
            self._run = []
            self.source.add(f"{self.out}.append(0)")
            return
        values = ", ".join(expression for expression, _ in self._run if expression)
        packer = self.source.struct_method("pack", "".join(format for _, format in self._run))
        self._run = []
        self.source.add(f"{self.out} += {packer}({values})")

    # -- structs and their fields

    def struct(self, cls: type, value: str) -> None:
        tagged: list[Field] = []
        for field in schema_of(cls).fields:
            expression = f"{value}.{field.name}"
            if not field.is_in(self.version) or (field.tag is not None and not self.flexible):
                self._absent(field, expression, cls.__name__)
            elif field.tag is not None:
                tagged.append(field)
            else:
                self._value(field.kind, expression, field.is_nullable_in(self.version))
        if self.flexible:
            self._tags(tagged, value)

    def _absent(self, field: Field, expression: str, owner: str) -> None:
        if field.ignorable:
            return
        self._flush()
        with self.source.block(f"if {self._differs(field, expression)}:"):
            self.source.add(f"raise not_in_version('{owner}.{field.name}', {self.version})")

    def _differs(self, field: Field, expression: str) -> str:
        """An expression that is true when the field does not hold its default."""
        default = field.default
        if default is None:
            return f"{expression} is not None"
        if isinstance(default, (list, str, bytes, bool)) and not default:
            # Null is not the default of a field that defaults to something empty.
            return f"{expression} or {expression} is None"
        if type(default) is int:
            return f"{expression} != {default}"
        return f"{expression} != {self.source.constant(field.name, default)}"

    def _value(self, kind: Kind, expression: str, nullable: bool) -> None:
        if isinstance(kind, Array):
            self._array(kind.element, expression, nullable)
        elif not isinstance(kind, Primitive):
            self._nested(kind, expression, nullable)
        elif kind.format:
            self._fixed(expression, kind.format)
        else:
            self._sized(kind.name, expression, nullable)

    def _nested(self, cls: type, expression: str, nullable: bool, null: int = -1) -> None:
        """A struct; a nullable one has a marker before it (KIP-893): a byte, or in a tag a varint."""
        value = self._take(expression)
        if not nullable:
            self.struct(cls, value)
            return
        self._flush()
        with self.source.block(f"if {value} is None:"):
            self._fixed(str(null), "b")
            self._flush()
        with self.source.block("else:"):
            self._fixed("1", "b")
            self.struct(cls, value)
            self._flush()

    def _take(self, expression: str) -> str:
        value = self.source.name("v")
        self.source.add(f"{value} = {expression}")
        return value

    # -- what has a length

    def _length(self, value: str, old_format: str, put: str = "put_uvarint") -> None:
        if not self.flexible:
            self._fixed(f"len({value})", old_format)
            self._flush()
            return
        self._flush()
        n = self.source.name("n")
        self.source.add(f"{n} = len({value}) + 1")
        with self.source.block(f"if {n} < 128:"):
            self.source.add(f"{self.out}.append({n})")
        with self.source.block("else:"):
            self.source.add(f"{put}({self.out}, {n})")

    def _null(self, old_format: str) -> None:
        self._fixed("0" if self.flexible else "-1", "b" if self.flexible else old_format)
        self._flush()

    def _sized(self, kind: str, expression: str, nullable: bool) -> None:
        old_format = "h" if kind == "string" else "i"
        value = self._take(expression)
        if not nullable:
            self._sized_value(kind, value, old_format)
            return
        self._flush()
        with self.source.block(f"if {value} is None:"):
            self._null(old_format)
        with self.source.block("else:"):
            self._sized_value(kind, value, old_format)

    def _sized_value(self, kind: str, value: str, old_format: str) -> None:
        if kind == "string":
            self.source.add(f"{value} = {value}.encode()")
            self._length(value, old_format, "put_string_length")
        else:
            self._length(value, old_format)
        self.source.add(f"{self.out} += {value}")

    # -- arrays

    def _array(self, element: Kind, expression: str, nullable: bool) -> None:
        values = self._take(expression)
        if not nullable:
            self._elements(element, values)
            return
        self._flush()
        with self.source.block(f"if {values} is None:"):
            self._null("i")
        with self.source.block("else:"):
            self._elements(element, values)

    def _numbers(self, format: str, values: str) -> None:
        """An array of numbers, its length included in the one call that packs it while it is short."""
        self._flush()
        n = self.source.name("n")
        small = self.source.constant("small", small_structs("pack", "B" if self.flexible else "i", format))
        self.source.add(f"{n} = len({values})")
        with self.source.block(f"if {n} < {SMALL}:"):
            stored = f"{n} + 1" if self.flexible else n
            self.source.add(f"{self.out} += {small}[{n}]({stored}, *{values})")
        with self.source.block("else:"):
            self._length(values, "i")
            self.source.add(f"{self.out} += pack(f'>{{{n}}}{format}', *{values})")

    def _elements(self, element: Kind, values: str) -> None:
        if isinstance(element, Primitive) and len(element.format) == 1:
            self._numbers(element.format, values)
            return
        self._length(values, "i")
        value = self.source.name("e")
        with self.source.block(f"for {value} in {values}:"):
            if isinstance(element, (Primitive, Array)):
                self._value(element, value, nullable=False)
            else:
                self.struct(element, value)
            self._flush()

    # -- tagged fields: on the wire in the order of their tags, when they differ from their defaults

    def _tags(self, tagged: list[Field], value: str) -> None:
        if not tagged:
            self._fixed("", "x")  # struct's pad byte is the zero that says: no tags
            return
        self._flush()
        section, count = self.source.name("g"), self.source.name("c")
        self.source.add(f"{count} = 0", f"{section} = bytearray()")
        for field in sorted(tagged, key=lambda field: field.tag or 0):
            self._tag(field, f"{value}.{field.name}", section, count)
        self.source.add(f"put_uvarint({self.out}, {count})", f"{self.out} += {section}")

    def _tag(self, field: Field, expression: str, section: str, count: str) -> None:
        one = self.source.name("o")
        with self.source.block(f"if {self._differs(field, expression)}:"):
            self.source.add(f"{count} += 1", f"{one} = bytearray()")
            outer, self.out = self.out, one
            self._tagged_value(field, expression)
            self._flush()
            self.out = outer
            self.source.add(f"put_tag({section}, {field.tag}, {one})")

    def _tagged_value(self, field: Field, expression: str) -> None:
        nullable = field.is_nullable_in(self.version)
        if isinstance(field.kind, type):
            self._nested(field.kind, expression, nullable, null=0)
        else:
            self._value(field.kind, expression, nullable)


# --- decoders


_DECODER_HELPERS: dict[str, Any] = {
    "new": object.__new__,
    "unpack_from": unpack_from,
    **{
        name: getattr(primitives, name)
        for name in (
            "null_field",
            "read_tag",
            "skip_tags",
            "string_length_rest",
            "tag_count",
            "too_long",
            "too_many",
            "too_short",
            "uvarint_rest",
            "wrong_tag_size",
        )
    },
}


def compile_decoder(cls: type, version: int, bounded: bool = False) -> Callable[..., Any]:
    """The decoder of `cls` in `version`."""
    schema = schema_of(cls)
    compiler = _Decoder(version, schema.is_flexible(version), bounded)
    compiler.message(cls)
    return compiler.source.build(f"decoder of {schema.name} v{version}", _DECODER_HELPERS)


class _Decoder:
    def __init__(self, version: int, flexible: bool, bounded: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.bounded = bounded
        self.source = Source("buf, p, end, left" if bounded else "buf, p, end")
        self._run: list[tuple[str, str, int]] = []  # fixed-size values not read yet: target, format, size

    def message(self, cls: type) -> None:
        self.struct(cls, "message")
        self._flush()
        self.source.add("return message, p, left" if self.bounded else "return message, p")

    # -- fixed-size runs

    def _fixed(self, target: str, format: str, size_bytes: int) -> None:
        self._run.append((target, format, size_bytes))

    def _flush(self) -> None:
        if not self._run:
            return
        if len(self._run) == 1 and self._run[0][1] == "B":
            self.source.add(f"{self._run.pop()[0]} = buf[p]", "p += 1")
            return
        targets = ", ".join(target for target, _, _ in self._run)
        unpack = self.source.struct_method("unpack_from", "".join(format for _, format, _ in self._run))
        size_bytes = sum(size for _, _, size in self._run)
        comma = "," if len(self._run) == 1 else ""
        self.source.add(f"{targets}{comma} = {unpack}(buf, p)", f"p += {size_bytes}")
        self._run = []

    # -- structs and their fields

    def struct(self, cls: type, target: str) -> None:
        self._flush()
        self.source.add(f"{target} = new({self.source.constant(cls.__name__, cls)})")
        tagged: list[Field] = []
        for field in schema_of(cls).fields:
            tag = field.tag is not None
            if not field.is_in(self.version) or (tag and not self.flexible):
                self._default(field, target)
            elif tag:
                self._default(field, target)
                tagged.append(field)
            else:
                self._value(field.kind, f"{target}.{field.name}", field, field.is_nullable_in(self.version))
        if self.flexible:
            self._tags(tagged, target)

    def _default(self, field: Field, target: str) -> None:
        default = field.default
        if isinstance(default, list):
            value = "[]"
        elif hasattr(default, "SCHEMA"):
            value = self.source.constant(field.name, type(default)) + "()"
        elif default is None or isinstance(default, (bool, int, str)):
            value = repr(default)
        else:
            value = self.source.constant(field.name, default)
        self.source.add(f"{target}.{field.name} = {value}")

    def _value(self, kind: Kind, target: str, field: Field, nullable: bool) -> None:
        if isinstance(kind, Array):
            self._array(kind.element, target, field, nullable)
        elif not isinstance(kind, Primitive):
            self._nested(kind, target, nullable)
        elif kind.format:
            self._fixed(target, kind.format, kind.size_bytes)
        elif kind.name == "string":
            self._string(target, field, nullable)
        else:
            self._bytes(kind.name, target, field, nullable)

    def _nested(self, cls: type, target: str, nullable: bool, marker: str = "b") -> None:
        """A struct; a nullable one has a marker before it (KIP-893): a byte, or in a tag a varint."""
        value = self.source.name("s")
        if not nullable:
            self.struct(cls, value)
            self._flush()
            self.source.add(f"{target} = {value}")
            return
        flag = self.source.name("n")
        self._fixed(flag, marker, 1)
        self._flush()
        with self.source.block(f"if {flag} {'<' if marker == 'b' else '<='} 0:"):
            self.source.add(f"{target} = None")
        with self.source.block("else:"):
            self._nested(cls, target, nullable=False)

    # -- lengths: an unsigned varint holding n + 1, or a fixed integer holding n with a negative for null

    def _length(self, old_format: str, rest: str = "uvarint_rest") -> str:
        """Emits the reading of a length into a fresh name: n, or below zero for null."""
        n = self.source.name("n")
        if not self.flexible:
            self._fixed(n, old_format, 2 if old_format == "h" else 4)
            self._flush()
            return n
        self._fixed(n, "B", 1)
        self._flush()
        with self.source.block(f"if {n} > 127:"):
            self.source.add(f"{n}, p = {rest}(buf, p, {n})")
        self.source.add(f"{n} -= 1")
        return n

    @contextmanager
    def _unless_null(self, n: str, target: str, field: Field, nullable: bool) -> Iterator[None]:
        """Emits what a null means, and then, for when it is none, what is emitted inside."""
        with self.source.block(f"if {n} < 0:"):
            self.source.add(f"{target} = None" if nullable else f"raise null_field({field.name!r})")
        if nullable:
            with self.source.block("else:"):
                yield
        else:
            yield

    def _span(self, n: str, field: Field) -> str:
        """Emits the end of n bytes from p, checked to be there."""
        q = self.source.name("q")
        self.source.add(f"{q} = p + {n}")
        with self.source.block(f"if {q} > end:"):
            self.source.add(f"raise too_short({field.name!r}, {n}, end - p)")
        return q

    def _string(self, target: str, field: Field, nullable: bool) -> None:
        n = self._length("h", "string_length_rest")
        with self._unless_null(n, target, field, nullable):
            q = self._span(n, field)
            # As Java reads strings: what is not UTF-8 becomes U+FFFD, it does not fail the request.
            # Many are empty, and nothing is quicker than not to look.
            self.source.add(f"{target} = str(buf[p:{q}], 'utf-8', 'replace') if {n} else ''", f"p = {q}")

    def _bytes(self, kind: str, target: str, field: Field, nullable: bool) -> None:
        n = self._length("i")
        make = "memoryview(buf)[p:{}]" if kind == "records" else "bytes(buf[p:{}])"
        with self._unless_null(n, target, field, nullable):
            q = self._span(n, field)
            self.source.add(f"{target} = {make.format(q)}", f"p = {q}")

    # -- arrays

    def _array(self, element: Kind, target: str, field: Field, nullable: bool) -> None:
        n = self._length("i")
        with self._unless_null(n, target, field, nullable):
            smallest = max(1, self._smallest(element))
            with self.source.block(f"if {n} * {smallest} > end - p:"):
                self.source.add(f"raise too_many({n}, end - p)")
            self._count(n)
            self._elements(element, n, target, field)

    def _count(self, n: str) -> None:
        if self.bounded:
            self.source.add(f"left -= {n}")
            with self.source.block("if left < 0:"):
                self.source.add("raise too_long()")

    def _elements(self, element: Kind, n: str, target: str, field: Field) -> None:
        if isinstance(element, Primitive) and len(element.format) == 1:
            small = self.source.constant("small", small_structs("unpack_from", "", element.format))
            many = f"unpack_from(f'>{{{n}}}{element.format}', buf, p)"
            self.source.add(f"{target} = [*({small}[{n}](buf, p) if {n} < {SMALL} else {many})]")
            self.source.add(f"p += {n} * {element.size_bytes}")
            return
        values, value = self.source.name("l"), self.source.name("e")
        self.source.add(f"{target} = {values} = []")
        with self.source.block(f"for _ in range({n}):"):
            if isinstance(element, (Primitive, Array)):
                self._value(element, value, field, nullable=False)
            else:
                self.struct(element, value)
            self._flush()
            self.source.add(f"{values}.append({value})")

    def _smallest(self, kind: Kind) -> int:
        """The fewest bytes a value of this kind takes, to refuse an impossible count at once."""
        length = 1 if self.flexible else 4
        if isinstance(kind, Array):
            return length
        if isinstance(kind, Primitive):
            return kind.size_bytes or (1 if self.flexible else 2 if kind.name == "string" else 4)
        untagged = [
            field
            for field in schema_of(kind).fields
            if field.is_in(self.version) and (field.tag is None or not self.flexible)
        ]
        sizes = (1 if self._is_null_struct(field) else self._smallest(field.kind) for field in untagged)
        return sum(sizes) + self.flexible

    def _is_null_struct(self, field: Field) -> bool:
        return isinstance(field.kind, type) and field.is_nullable_in(self.version)

    # -- tagged fields

    def _tags(self, tagged: list[Field], target: str) -> None:
        n = self.source.name("t")
        self._fixed(n, "B", 1)
        self._flush()
        with self.source.block(f"if {n}:"):
            if not tagged and not self.bounded:
                self.source.add(f"p = skip_tags(buf, p, {n}, end)")
                return
            with self.source.block(f"if {n} > {primitives.MAX_TAGS}:"):
                self.source.add(f"{n}, p = tag_count(buf, p, {n})")
            with self.source.block(f"if {n} * 2 > end - p:"):
                self.source.add(f"raise too_many({n}, end - p)")
            self._count(n)
            self._tag_loop(n, tagged, target)

    def _tag_loop(self, n: str, tagged: list[Field], target: str) -> None:
        tag, stop = self.source.name("tag"), self.source.name("stop")
        with self.source.block(f"for _ in range({n}):"):
            self.source.add(f"{tag}, p, {stop} = read_tag(buf, p, end)")
            for position, field in enumerate(tagged):
                with self.source.block(f"{'el' if position else ''}if {tag} == {field.tag}:"):
                    self._tagged_value(field, f"{target}.{field.name}")
                    self._flush()
                    with self.source.block(f"if p != {stop}:"):
                        self.source.add(f"raise wrong_tag_size({field.name!r})")
            self.source.add(f"p = {stop}")

    def _tagged_value(self, field: Field, target: str) -> None:
        nullable = field.is_nullable_in(self.version)
        if isinstance(field.kind, type):
            self._nested(field.kind, target, nullable, marker="B")
        else:
            self._value(field.kind, target, field, nullable)
