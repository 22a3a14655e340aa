"""The text of .proto files, read and written: a FileDescriptorProto from what people and registries keep, and back.

Rules: proto2 and proto3, without protoc. What decides how bytes are read is read: messages, enums, fields, oneofs,
maps, defaults, imports. What does not is passed over: services, extensions, and options but a few. What is neither
(groups, editions) is Unsupported, never guessed at. Names of types stay as they are written; Protobuf's pool resolves
them by its scopes. Pure: text in, descriptors out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

MAX_DEPTH = 64
SCALARS = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
_SCALAR_NAMES = {number: name for name, number in SCALARS.items()}
TYPE_GROUP, TYPE_MESSAGE, TYPE_ENUM, TYPE_BYTES = 10, 11, 14, 12
LABELS = {"optional": 1, "required": 2, "repeated": 3}
OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
MAX_FIELD, MAX_ENUM = 536_870_911, 2_147_483_647
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<word>\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
      | (?P<number>0[xX][0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[fF]?)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<symbol>[{}\[\]()<>=;,:+/-])""",
    re.X | re.S,
)
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.S
)
_NAMED_ESCAPES = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11}


class ProtoError(ValueError):
    """The text is no .proto file; the message says where and why."""


class Unsupported(ProtoError):
    """It may be one, of a kind that only protoc reads."""


class Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse_proto(text: str, name: str) -> Any:
    """The FileDescriptorProto of a .proto file's text."""
    return _Reader(text, name).file()


def _tokens(text: str, name: str) -> Iterator[Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ProtoError(f"{name}:{line}: {text[at]!r} is not understood")
        if found.lastgroup != "space":
            yield Token(found.lastgroup or "", found[0], line)
        line += found[0].count("\n")
        at = found.end()


def _unquoted(token: Token) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, other = found.groups()
        if octal or hexadecimal:
            return bytes([int(octal or hexadecimal, 8 if octal else 16) & 0xFF])
        if short or long:
            number = int(short or long, 16)
            # What is no character is refused with all that is no UTF-8.
            return chr(number).encode("utf-8", "surrogatepass") if number <= sys.maxunicode else b"\xff"
        return bytes([_NAMED_ESCAPES[other]]) if other in _NAMED_ESCAPES else bytes(other)

    return _ESCAPE.sub(one, token.text[1:-1].encode())


class _Reader:
    """Goes through the tokens once."""

    def __init__(self, text: str, name: str) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        self._name = name
        self._tokens = [*_tokens(text, name), Token("end", "the end", text.count("\n") + 1)]
        self._at = 0
        self._file: Any = FileDescriptorProto(name=name)
        self._is_proto3 = False

    # -- tokens ----------------------------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def _fail(self, wanted: str, token: Token | None = None) -> NoReturn:
        token = token or self._next
        raise ProtoError(f"{self._name}:{token.line}: {token.text} stands where {wanted} should")

    def _refuse(self, what: str) -> NoReturn:
        raise Unsupported(f"{self._name}:{self._next.line}: {what}")

    def _is(self, text: str) -> bool:
        return self._next.text == text and self._next.kind != "string"

    def _try(self, text: str) -> bool:
        found = self._is(text)
        if found:
            self._take()
        return found

    def _expect(self, text: str) -> None:
        if not self._try(text):
            self._fail(repr(text))

    def _word(self, what: str) -> str:
        if self._next.kind != "word":
            self._fail(what)
        return self._take().text

    def _identifier(self, what: str) -> str:
        name = self._word(what)
        if "." in name:
            self._fail(what, self._tokens[self._at - 1])
        return name

    def _string(self, what: str) -> bytes:
        if self._next.kind != "string":
            self._fail(what)
        found = b""
        while self._next.kind == "string":
            found += _unquoted(self._take())
        return found

    def _text(self, what: str) -> str:
        token = self._next
        try:
            return self._string(what).decode()
        except UnicodeDecodeError:
            self._fail(f"{what} in UTF-8", token)

    def _integer(self, what: str, low: int, high: int) -> int:
        sign = -1 if self._try("-") else 1
        token = self._next
        if token.kind != "number" or re.fullmatch(r"0[xX][0-9a-fA-F]+|\d+", token.text) is None:
            self._fail(what)
        self._take()
        number = sign * _int(token.text)
        if not low <= number <= high:
            self._fail(f"{what} of {low:,} to {high:,}", token)
        return number

    def _skip(self, end: str) -> None:
        """Past this symbol, and all brackets before it."""
        closing = {"{": "}", "[": "]", "(": ")"}
        waiting = [end]
        while waiting:
            token = self._take()
            if token.kind == "end":
                self._fail(repr(waiting[-1]))
            if token.kind != "symbol":
                continue
            if token.text == waiting[-1]:
                waiting.pop()
            elif token.text in closing:
                waiting.append(closing[token.text])
            elif token.text in closing.values():
                self._fail(repr(waiting[-1]), token)

    # -- the file --------------------------------------------------------------------------------------

    def file(self) -> Any:
        if self._is("edition"):
            self._refuse("editions are read by protoc alone")
        if self._try("syntax"):
            self._expect("=")
            syntax = self._text("proto2 or proto3")
            if syntax not in ("proto2", "proto3"):
                raise ProtoError(
                    f"{self._name}:{self._next.line}: syntax {syntax!r} is neither proto2 nor proto3"
                )
            self._expect(";")
            self._is_proto3 = syntax == "proto3"
            if self._is_proto3:
                self._file.syntax = syntax
        while self._next.kind != "end":
            self._top_level()
        return self._file

    def _top_level(self) -> None:
        file = self._file
        match self._word("a message, an enum or another declaration"):
            case "package":
                file.package = self._word("a package")
                self._expect(";")
            case "import":
                # `import option` is of what options need, which are passed over.
                how = self._take().text if self._next.kind == "word" else ""
                name = self._text("the name of a file")
                self._expect(";")
                if how in ("public", "weak"):
                    getattr(file, f"{how}_dependency").append(len(file.dependency))
                if how != "option":
                    file.dependency.append(name)
            case "message":
                self._message(file.message_type.add(), 1)
            case "enum":
                self._enum(file.enum_type.add())
            case "service" | "extend":
                self._word("a name")
                self._expect("{")
                self._skip("}")
            case "option":
                self._skip(";")
            case _:
                self._at -= 1
                self._fail("a message, an enum or another declaration")
        while self._try(";"):
            pass

    # -- messages --------------------------------------------------------------------------------------

    def _message(self, message: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            self._refuse(f"messages within messages, more than {MAX_DEPTH} deep")
        message.name = self._identifier("the name of a message")
        self._expect("{")
        while not self._try("}"):
            self._part(message, depth)
        # As protoc puts them: what is optional in proto3 is in a oneof of its own, behind those that were written.
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=_unused(f"_{field.name}", message))

    def _part(self, message: Any, depth: int) -> None:
        if self._try(";"):
            return
        word = self._word("a field")
        follows = self._next
        # These words may be types and names of fields as well.
        if word == "message" and follows.kind == "word":
            self._message(message.nested_type.add(), depth + 1)
        elif word == "enum" and follows.kind == "word":
            self._enum(message.enum_type.add())
        elif word == "oneof" and follows.kind == "word":
            self._oneof(message)
        elif word == "map" and follows.text == "<":
            self._map(message)
        elif word == "extend" and follows.kind == "word":
            self._word("a name")
            self._expect("{")
            self._skip("}")
        elif word == "extensions":
            for start, end in self._ranges(MAX_FIELD):
                message.extension_range.add(start=start, end=end + 1)
        elif word == "reserved":
            self._reserved(message, MAX_FIELD, 1)
        elif word == "option":
            self._skip(";")
        else:
            self._field(message, word)

    def _field(self, message: Any, word: str, oneof: int | None = None) -> None:
        field = message.field.add(label=OPTIONAL)
        if word in LABELS and self._next.kind == "word":
            if oneof is not None:
                self._fail("a field without a label")
            field.label = LABELS[word]
            if self._is_proto3 and word == "required":
                self._fail("a label of proto3")
            field.proto3_optional = self._is_proto3 and word == "optional"
            word = self._word("a type")
        elif oneof is None and not self._is_proto3:
            self._fail("optional, required or repeated")
        if word == "group":
            self._refuse("groups are read by protoc alone")
        if not field.proto3_optional:
            field.ClearField("proto3_optional")
        self._typed(field, word)
        self._rest(field)
        if oneof is not None:
            field.oneof_index = oneof

    def _typed(self, field: Any, word: str) -> None:
        if word in SCALARS:
            field.type = SCALARS[word]
        else:
            field.type_name = word

    def _rest(self, field: Any) -> None:
        """From the name of a field to its end."""
        field.name = self._identifier("the name of a field")
        self._expect("=")
        field.number = self._integer("the number of a field", 1, MAX_FIELD)
        if self._try("["):
            self._options(lambda name: self._field_option(field, name))
        self._expect(";")

    def _oneof(self, message: Any) -> None:
        number = len(message.oneof_decl)
        message.oneof_decl.add(name=self._identifier("the name of a oneof"))
        self._expect("{")
        while not self._try("}"):
            if self._try(";"):
                continue
            word = self._word("a field")
            if word == "option":
                self._skip(";")
            else:
                self._field(message, word, number)

    def _map(self, message: Any) -> None:
        field = message.field.add(label=REPEATED)
        self._expect("<")
        key = self._word("the type of a key")
        if key not in SCALARS or key in ("double", "float", "bytes"):
            self._fail("a type that a key may have", self._tokens[self._at - 1])
        self._expect(",")
        value = self._word("the type of a value")
        self._expect(">")
        self._rest(field)
        entry = message.nested_type.add(name=f"{_camel(field.name)}Entry")
        entry.options.map_entry = True
        self._typed(entry.field.add(name="key", number=1, label=OPTIONAL), key)
        self._typed(entry.field.add(name="value", number=2, label=OPTIONAL), value)
        field.type, field.type_name = TYPE_MESSAGE, entry.name

    def _enum(self, enum: Any) -> None:
        enum.name = self._identifier("the name of an enum")
        self._expect("{")
        while not self._try("}"):
            if self._try(";"):
                continue
            name = self._identifier("a value of an enum")
            if name == "option" and not self._is("="):
                if self._try("allow_alias"):
                    self._expect("=")
                    enum.options.allow_alias = self._word("true or false") == "true"
                    self._expect(";")
                else:
                    self._skip(";")
            elif name == "reserved" and not self._is("="):
                self._reserved(enum, MAX_ENUM, 0)
            else:
                self._expect("=")
                enum.value.add(name=name, number=self._integer("a number", -MAX_ENUM - 1, MAX_ENUM))
                if self._try("["):
                    self._skip("]")
                self._expect(";")

    def _reserved(self, holder: Any, high: int, beyond: int) -> None:
        """What is not to be used again. A message's range ends one past its last number, an enum's with it."""
        if self._next.kind in ("string", "word"):
            while True:
                name = self._text("a name") if self._next.kind == "string" else self._identifier("a name")
                holder.reserved_name.append(name)
                if not self._try(","):
                    break
            self._expect(";")
            return
        for start, end in self._ranges(high):
            holder.reserved_range.add(start=start, end=end + beyond)

    def _ranges(self, high: int) -> list[tuple[int, int]]:
        low = 1 if high == MAX_FIELD else -MAX_ENUM - 1
        found = []
        while True:
            start = end = self._integer("a number", low, high)
            if self._try("to"):
                end = high if self._try("max") else self._integer("a number", low, high)
            found.append((start, end))
            if not self._try(","):
                break
        if self._try("["):
            self._skip("]")
        self._expect(";")
        return found

    # -- options ---------------------------------------------------------------------------------------

    def _options(self, take: Callable[[str], bool]) -> None:
        """Up to the bracket that ends them; what is not taken is passed over."""
        while True:
            if self._is("(") or self._tokens[self._at : self._at + 2][-1].text != "=":
                self._pass_over_name()
                self._expect("=")
                self._pass_over_value()
            else:
                name = self._word("an option")
                self._expect("=")
                if not take(name):
                    self._pass_over_value()
            if not self._try(","):
                break
        self._expect("]")

    def _pass_over_name(self) -> None:
        while not self._is("="):
            if self._try("("):
                self._skip(")")
            elif self._next.kind in ("word", "number"):
                self._take()
            else:
                self._fail("an option")

    def _pass_over_value(self) -> None:
        if self._try("{"):
            self._skip("}")
            return
        _ = self._try("-") or self._try("+")
        if self._next.kind == "string":
            self._string("a value")
        elif self._next.kind in ("word", "number"):
            self._take()
        else:
            self._fail("a value")

    def _field_option(self, field: Any, name: str) -> bool:
        match name:
            case "json_name":
                field.json_name = self._text("a name")
            case "packed" | "deprecated":
                setattr(field.options, name, self._word("true or false") == "true")
            case "default":
                field.default_value = self._default(field)
            case _:
                return False
        return True

    def _default(self, field: Any) -> str:
        """As descriptors have it: text as it is, bytes with escapes, numbers in digits."""
        if self._next.kind == "string":
            if field.type == TYPE_BYTES:
                return _escaped(self._string("a default"))
            return self._text("a default")
        sign = "-" if self._try("-") else ""
        token = self._take()
        if token.kind not in ("word", "number"):
            self._fail("a default", token)
        if token.kind == "word" or field.type in (1, 2):
            return sign + (token.text.lower().removesuffix("f") if token.kind == "number" else token.text)
        return f"{sign}{_int(token.text)}"


def _int(text: str) -> int:
    """0x1F, 017 and 15 as C has them."""
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    try:
        return int(text, 8 if len(text) > 1 and text[0] == "0" else 10)
    except ValueError:
        raise ProtoError(f"{text} is no number") from None


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _unused(name: str, message: Any) -> str:
    taken = {one.name for one in (*message.oneof_decl, *message.field)}
    while name in taken:
        name = f"X{name}"
    return name


def _escaped(data: bytes) -> str:
    named = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return "".join(named.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data)


# -- writing ---------------------------------------------------------------------------------------------------------


def write_proto(file: Any) -> str:
    """The text that `parse_proto` makes this file's descriptor of again, but for options and services."""
    syntax = file.syntax or "proto2"
    if syntax not in ("proto2", "proto3"):
        raise Unsupported(f"{file.name}: editions are written by nobody here")
    lines = [f'syntax = "{syntax}";']
    if file.package:
        lines.append(f"package {file.package};")
    for number, name in enumerate(file.dependency):
        how = (
            "public "
            if number in file.public_dependency
            else "weak "
            if number in file.weak_dependency
            else ""
        )
        lines.append(f"import {how}{_quoted(name)};")
    is_proto3 = syntax == "proto3"
    for enum in file.enum_type:
        lines += _enum_lines(enum)
    for message in file.message_type:
        lines += _message_lines(message, is_proto3)
    return "\n".join([*lines, ""])


def _message_lines(message: Any, is_proto3: bool) -> list[str]:
    inside: list[str] = []
    for enum in message.enum_type:
        inside += _enum_lines(enum)
    # Frames name messages by their places, and a map has one: messages stand before the maps that come after them.
    maps = {one.name: one for one in message.nested_type if one.options.map_entry}
    waiting = list(message.nested_type)

    def add_until(entry: Any) -> None:
        while waiting:
            nested = waiting.pop(0)
            if nested.name == (entry and entry.name):
                break
            if nested.name not in maps:
                inside.extend(_message_lines(nested, is_proto3))

    written: set[int] = set()
    for field in message.field:
        entry = _entry(field, maps)
        if entry is not None and entry in waiting:
            add_until(entry)
        if not field.HasField("oneof_index") or field.proto3_optional:
            inside.append(_field_line(field, entry, is_proto3))
        elif field.oneof_index not in written:
            written.add(field.oneof_index)
            together = [one for one in message.field if _is_in(one, field.oneof_index)]
            inside.append(f"oneof {message.oneof_decl[field.oneof_index].name} {{")
            inside += [f"  {_field_line(one, None, is_proto3)}" for one in together]
            inside.append("}")
    add_until(None)
    inside += _range_lines("reserved", message.reserved_range, MAX_FIELD, 1)
    inside += _range_lines("extensions", message.extension_range, MAX_FIELD, 1)
    inside += _name_lines(message.reserved_name)
    return _block(f"message {message.name}", inside)


def _entry(field: Any, maps: dict[str, Any]) -> Any:
    return maps.get(field.type_name.rpartition(".")[2]) if field.label == REPEATED else None


def _is_in(field: Any, oneof: int) -> bool:
    return bool(field.HasField("oneof_index") and not field.proto3_optional and field.oneof_index == oneof)


def _field_line(field: Any, entry: Any, is_proto3: bool) -> str:
    """`entry` is the message that a map's field is a list of."""
    if field.type == TYPE_GROUP:
        raise Unsupported(f"field {field.name!r}: groups are written by nobody here")
    if entry is not None:
        key, value = entry.field
        kind = f"map<{_kind(key)}, {_kind(value)}>"
    else:
        kind = _label(field, is_proto3) + _kind(field)
    options = ", ".join(_option_texts(field))
    return f"{kind} {field.name} = {field.number}{f' [{options}]' if options else ''};"


def _label(field: Any, is_proto3: bool) -> str:
    if field.label == REPEATED:
        return "repeated "
    if field.HasField("oneof_index") and not field.proto3_optional:
        return ""
    if is_proto3:
        return "optional " if field.proto3_optional else ""
    return "required " if field.label == REQUIRED else "optional "


def _kind(field: Any) -> str:
    return str(field.type_name) if field.type_name else _SCALAR_NAMES[field.type]


def _option_texts(field: Any) -> Iterator[str]:
    if field.HasField("default_value"):
        text = field.default_value
        if field.type == TYPE_BYTES:
            text = f'"{text}"'  # it has its escapes
        elif field.type == SCALARS["string"]:
            text = _quoted(text)
        yield f"default = {text}"
    if field.HasField("json_name") and field.json_name != _json_name(field.name):
        yield f"json_name = {_quoted(field.json_name)}"
    for name in ("packed", "deprecated"):
        if field.options.HasField(name):
            yield f"{name} = {str(getattr(field.options, name)).lower()}"


def _json_name(name: str) -> str:
    """The one that a field has without an option."""
    return re.sub(r"_+(.?)", lambda found: found[1].upper(), name)


def _enum_lines(enum: Any) -> list[str]:
    inside = ["option allow_alias = true;"] if enum.options.allow_alias else []
    inside += [f"{value.name} = {value.number};" for value in enum.value]
    inside += _range_lines("reserved", enum.reserved_range, MAX_ENUM, 0)
    return _block(f"enum {enum.name}", [*inside, *_name_lines(enum.reserved_name)])


def _range_lines(word: str, ranges: Iterable[Any], high: int, beyond: int) -> list[str]:
    def text(start: int, end: int) -> str:
        if start == end:
            return str(start)
        return f"{start} to {'max' if end == high else end}"

    return [f"{word} {text(one.start, one.end - beyond)};" for one in ranges]


def _name_lines(names: Iterable[str]) -> list[str]:
    found = ", ".join(map(_quoted, names))
    return [f"reserved {found};"] if found else []


def _block(head: str, inside: list[str]) -> list[str]:
    return [f"{head} {{", *(f"  {line}" for line in inside), "}"]


def _quoted(text: str) -> str:
    return f'"{_escaped(text.encode())}"'
