"""Writes DER, for names and certificates that no tool makes."""

from __future__ import annotations


def tlv(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    if len(content) < 0x80:
        return bytes([tag, len(content)]) + content
    size = (len(content).bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + len(content).to_bytes(size, "big") + content


def sequence(*contents: bytes) -> bytes:
    return tlv(0x30, *contents)


def integer(value: int) -> bytes:
    return tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    out = b""
    for arc in (40 * first + second, *rest):
        groups = [arc & 0x7F]
        while arc := arc >> 7:
            groups.append(arc & 0x7F | 0x80)
        out += bytes(reversed(groups))
    return tlv(0x06, out)


def attribute(kind: str, value: bytes, tag: int = 0x0C) -> bytes:
    """One type and value of a name; UTF8String unless another tag is said."""
    return sequence(oid(kind), tlv(tag, value))


def name(*several: bytes | tuple[bytes, ...]) -> bytes:
    """A name of attributes; those of a tuple are one RDN."""
    return sequence(*(tlv(0x31, *(one if isinstance(one, tuple) else (one,))) for one in several))


def certificate(
    subject: bytes, *alt_names: bytes, issuer: bytes | None = None, until: str = "20491231235959Z"
) -> bytes:
    """Of the right form, with a signature that is none."""
    algorithm = sequence(oid("1.2.840.10045.4.3.2"))
    public_key = sequence(
        sequence(oid("1.2.840.10045.2.1"), oid("1.2.840.10045.3.1.7")), tlv(0x03, bytes(66))
    )
    extensions = b""
    if alt_names:
        extensions = tlv(0xA3, sequence(sequence(oid("2.5.29.17"), tlv(0x04, sequence(*alt_names)))))
    validity = sequence(tlv(0x17, b"240101000000Z"), tlv(0x18, until.encode()))
    body = sequence(
        *(tlv(0xA0, integer(2)), integer(4711), algorithm, issuer or subject),
        *(validity, subject, public_key, extensions),
    )
    return sequence(body, algorithm, tlv(0x03, bytes(10)))
