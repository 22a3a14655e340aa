"""Compiles the encoder of one message in one version to a straight-line Python function.

Purpose: `compile_encoder(cls, version)` gives `f(out, message)`, which appends to the bytearray `out`. The
mirror image of `ottla.wire.decoder`: structs inline, a run of fixed-size fields is one `pack`.

Rules: a field that the version lacks must hold its default unless it is ignorable; that is checked. Values of
the wrong type surface as struct.error, TypeError or AttributeError, which `ottla.wire.codec` turns into
WireError. Owned by `ottla.wire.codec`, which keeps the results.
"""

from collections.abc import Callable
from struct import pack
from typing import Any

from ottla.wire import primitives
from ottla.wire.schema import Array, Field, Kind, Primitive, schema_of
from ottla.wire.source import SMALL, Source, small_structs

_HELPERS: dict[str, Any] = {
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
    return compiler.source.build(f"encoder of {schema.name} v{version}", _HELPERS)


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
