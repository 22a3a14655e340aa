"""Reads ASN.1 as certificates and stores have it: DER, and the indefinite lengths of BER that some PKCS12 files have.

Rules: what is read may be anybody's, so that every length is checked against what is there, depth and counts have named
bounds, and DerError is all that is raised. Nothing is decoded before it is asked for. Stateless.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BOOLEAN: Final = 0x01
INTEGER: Final = 0x02
OCTET_STRING: Final = 0x04
OBJECT_IDENTIFIER: Final = 0x06
UTF8_STRING: Final = 0x0C
PRINTABLE_STRING: Final = 0x13
T61_STRING: Final = 0x14
IA5_STRING: Final = 0x16
UTC_TIME: Final = 0x17
GENERALIZED_TIME: Final = 0x18
GENERAL_STRING: Final = 0x1B
BMP_STRING: Final = 0x1E
SEQUENCE: Final = 0x30
SET: Final = 0x31
CONTEXT: Final = 0x80
CONSTRUCTED: Final = 0x20

# A store of all certificate authorities there are has a few hundred entries.
MAX_ITEMS: Final = 20_000
MAX_DEPTH: Final = 32
# As in Java.
MAX_OID_BYTES: Final = 4_096
MAX_INTEGER_BYTES: Final = 1_024
_LONGEST_LENGTH: Final = 4


class DerError(ValueError):
    """What is read is not what it should be."""


class Der(NamedTuple):
    """One value: its tag (the first byte), what is in it, and both with the length as they were written."""

    tag: int
    content: bytes
    encoded: bytes

    def expect(self, tag: int) -> Der:
        """Itself, if it has this tag."""
        if self.tag != tag:
            raise DerError(f"a value with tag 0x{self.tag:02x} where 0x{tag:02x} is expected")
        return self

    def items(self, tag: int = SEQUENCE) -> list[Der]:
        """The values in a sequence, a set or whatever is constructed."""
        return read_all(self.expect(tag).content)

    def parts(self, least: int, tag: int = SEQUENCE) -> list[Der]:
        """The values in a sequence that has at least so many."""
        found = self.items(tag)
        if len(found) < least:
            raise DerError(f"a sequence of {len(found)} values where at least {least} are expected")
        return found

    def integer(self) -> int:
        """A signed number."""
        content = self.expect(INTEGER).content
        if not 0 < len(content) <= MAX_INTEGER_BYTES:
            raise DerError(f"an integer of {len(content)} bytes")
        return int.from_bytes(content, "big", signed=True)

    def oid(self) -> str:
        """An object identifier, dotted."""
        content = self.expect(OBJECT_IDENTIFIER).content
        if not 0 < len(content) <= MAX_OID_BYTES or content[-1] & 0x80:
            raise DerError(f"an object identifier of {len(content)} bytes that is none")
        arcs: list[int] = []
        value = 0
        for byte in content:
            value = value << 7 | byte & 0x7F
            if not byte & 0x80:
                arcs.append(value)
                value = 0
        first = min(arcs[0] // 40, 2)
        try:
            return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))
        except ValueError:  # more digits than Python turns into text
            raise DerError("an object identifier with an arc that is far too large") from None

    def octets(self, tag: int = OCTET_STRING) -> bytes:
        """An octet string, in one piece (also if it is implicitly tagged) or, in BER, in pieces."""
        return self._octets(tag, 0)

    def _octets(self, tag: int, depth: int) -> bytes:
        if self.tag == tag:
            return self.content
        if self.tag != tag | CONSTRUCTED or depth >= MAX_DEPTH:
            raise DerError(f"a value with tag 0x{self.tag:02x} where bytes (0x{tag:02x}) are expected")
        return b"".join(item._octets(OCTET_STRING, depth + 1) for item in read_all(self.content))


def read(data: bytes, at: int = 0) -> tuple[Der, int]:
    """The value at a place, and where the next one is."""
    tag, start, end = _header(data, at)
    if end is not None:
        return Der(tag, data[start:end], data[at:end]), end
    close = _end_of_contents(data, start)
    return Der(tag, data[start:close], data[at : close + 2]), close + 2


def read_one(data: bytes) -> Der:
    """The one value there is."""
    value, end = read(data)
    if end != len(data):
        raise DerError(f"{len(data) - end} bytes after the end")
    return value


def read_all(data: bytes) -> list[Der]:
    """All values, one after the other."""
    found: list[Der] = []
    at = 0
    while at < len(data):
        if len(found) >= MAX_ITEMS:
            raise DerError(f"more than {MAX_ITEMS} values in one")
        value, at = read(data, at)
        found.append(value)
    return found


def _header(data: bytes, at: int) -> tuple[int, int, int | None]:
    """Tag, where the content starts and where it ends; None: that is said by what follows it."""
    if at + 2 > len(data):
        raise DerError("it ends in the middle of a value")
    tag, length, start = data[at], data[at + 1], at + 2
    if tag & 0x1F == 0x1F:
        raise DerError(f"a tag that is too large at byte {at}")
    if length == 0x80:
        if not tag & CONSTRUCTED:
            raise DerError(f"a value without a length at byte {at}")
        return tag, start, None
    if length > 0x80:
        size = length & 0x7F
        if size > _LONGEST_LENGTH or start + size > len(data):
            raise DerError(f"a length that is too large at byte {at}")
        length = int.from_bytes(data[start : start + size], "big")
        start += size
    if length > len(data) - start:
        raise DerError(f"a value of {length} bytes at byte {at}, where {len(data) - start} are left")
    return tag, start, start + length


def _end_of_contents(data: bytes, at: int) -> int:
    """Where the two zeros are that end a value of indefinite length, whose content starts here."""
    depth = 1
    while True:
        if data[at : at + 2] == b"\0\0":
            depth -= 1
            if depth == 0:
                return at
            at += 2
            continue
        _, start, end = _header(data, at)
        if end is None:
            depth += 1
            if depth > MAX_DEPTH:
                raise DerError(f"values in values, more than {MAX_DEPTH} deep")
            end = start
        at = end
