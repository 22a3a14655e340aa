"""How `ottla consume` prints a record: kcat's format strings and its JSON envelope. Pure."""

from __future__ import annotations

from ottla.cli.args import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.fetched import ConsumerRecord

    Printer = Callable[[ConsumerRecord], bytes]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_HEX_DIGITS = "0123456789abcdefABCDEF"
RAW = "raw"
ENCODINGS = (RAW, "hex", "base64")


def encode(data: bytes, encoding: str) -> bytes:
    """Bytes as a terminal can show them."""
    if encoding == RAW:
        return data
    import base64

    return data.hex().encode() if encoding == "hex" else base64.b64encode(data)


def decode(text: bytes, encoding: str) -> bytes:
    """What `encode` made, or a person typed; UsageError where it is not that."""
    if encoding == RAW:
        return text
    import base64
    import binascii

    try:
        if encoding == "hex":
            return bytes.fromhex(text.decode("ascii"))
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise UsageError(f"{text[:40].decode(errors='replace')!r} is not {encoding}") from None


def encoded(printer: Printer, *, key: str, value: str) -> Printer:
    """The printer, shown keys and values in these encodings; lengths stay those of what is printed."""
    if key == value == RAW:
        return printer

    def shown(data: bytes | None, encoding: str) -> bytes | None:
        return None if data is None else encode(data, encoding)

    return lambda record: printer(
        record._replace(key=shown(record.key, key), value=shown(record.value, value))
    )


def compile_format(text: str, null: bytes = b"") -> Printer:
    r"""A printer for a format: %t %p %o %k %s %K %S %T %h %R %%, and \n \t \r \0 \\ \xHH."""
    parts: list[bytes | Printer] = []
    position = 0
    while position < len(text):
        char = text[position]
        if char == "%":
            parts.append(_token(text[position + 1 : position + 2], null))
            position += 2
        elif char == "\\":
            literal, length = _escape(text, position)
            parts.append(literal)
            position += length
        else:
            parts.append(char.encode())
            position += 1

    def printer(record: ConsumerRecord) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in parts])

    return printer


def _escape(text: str, position: int) -> tuple[bytes, int]:
    after = text[position + 1 : position + 2]
    digits = text[position + 2 : position + 4]
    if after == "x" and len(digits) == 2 and all(digit in _HEX_DIGITS for digit in digits):
        return bytes([int(digits, 16)]), 4
    if after in _ESCAPES:
        return _ESCAPES[after], 2
    return b"\\", 1


def _token(token: str, null: bytes) -> bytes | Printer:
    def number(value: int) -> bytes:
        return b"%d" % value

    tokens: dict[str, bytes | Printer] = {
        "%": b"%",
        "t": lambda r: r.topic.encode(),
        "p": lambda r: number(r.partition),
        "o": lambda r: number(r.offset),
        "T": lambda r: number(r.timestamp),
        "k": lambda r: null if r.key is None else r.key,
        "s": lambda r: null if r.value is None else r.value,
        "K": lambda r: number(_length(r.key)),
        "S": lambda r: number(_length(r.value)),
        "R": lambda r: _length(r.value).to_bytes(4, "big", signed=True),
        "h": lambda r: b",".join(_header(name, value) for name, value in r.headers),
    }
    if token not in tokens:
        raise UsageError(f"-f: %{token} is not one of {' '.join('%' + known for known in tokens)}")
    return tokens[token]


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _header(name: str, value: bytes | None) -> bytes:
    return name.encode() + b"=" + (b"NULL" if value is None else value)


def json_envelope(record: ConsumerRecord) -> bytes:
    """One line of JSON with kcat's names."""
    import json

    headers: list[str | None] = []
    for name, value in record.headers:
        headers += [name, _text(value)]
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": "logappend" if record.timestamp_type else "create",
        "ts": record.timestamp,
        **({"headers": headers} if headers else {}),
        "key": _text(record.key),
        "payload": _text(record.value),
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | None) -> str | None:
    """What is not UTF-8 shows as replacement characters: JSON has no bytes."""
    return None if data is None else data.decode(errors="replace")
