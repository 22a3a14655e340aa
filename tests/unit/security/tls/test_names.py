"""Names as Java spells them; the same cases are asked of Java in tests/interop/test_java_names.py."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.support.der_writer import attribute, certificate, name, oid, sequence, tlv

from ottla.security.tls.der import DerError, read_one
from ottla.security.tls.names import canonical_name_of, name_of, read_certificate

CN, C, ORGANIZATION, UNIT, UID, DC = (
    *("2.5.4.3", "2.5.4.6", "2.5.4.10", "2.5.4.11"),
    *("0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"),
)
EMAIL = "1.2.840.113549.1.9.1"

CASES = [
    (name(), ""),
    (
        name(attribute(C, b"CZ", 0x13), attribute(ORGANIZATION, b"Ottla"), attribute(CN, b"alice")),
        "CN=alice,O=Ottla,C=CZ",
    ),
    (name(attribute(CN, b'a,b+c"d\\e<f>g;h=i#j')), 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j'),
    (name(attribute(CN, b"  two  ")), "CN=\\ \\ two\\ \\ "),
    (name(attribute(CN, b"   ")), "CN=\\ \\ \\ "),
    (name(attribute(CN, b"")), "CN="),
    (name(attribute(CN, b"\rline\r")), "CN=\\\rline\\\r"),
    (name(attribute(CN, b"a\0b\ttab\nline")), "CN=a\\00b\ttab\nline"),
    (name(attribute(CN, "Ottla Davidová 🜨".encode())), "CN=Ottla Davidová 🜨"),
    (name(attribute(CN, b"caf\xe9")), "CN=caf�"),
    (
        name(attribute(CN, b"T61", 0x14), attribute(CN, b"IA5", 0x16), attribute(CN, b"G", 0x1B)),
        "CN=G,CN=IA5,CN=T61",
    ),
    (name(attribute(CN, b"\0A\0,", 0x1E)), "CN=\\00A\\00\\,"),
    (name(attribute(CN, b"\0\0\0A", 0x1C)), "CN=#1c0400000041"),
    (name(attribute(CN, b"12", 0x12)), "CN=#12023132"),
    (name(attribute(EMAIL, b"a@b.c", 0x16)), "1.2.840.113549.1.9.1=#1605614062" + "2e63"),
    (name(attribute("2.5.4.5", b"77", 0x13)), "2.5.4.5=#13023737"),
    (name(attribute("2.5.4.12", b"Dr")), "2.5.4.12=#0c024472"),
    (name(attribute("2.999.4294967296", b"x")), "2.999.4294967296=#0c0178"),
    (
        name(attribute(DC, b"org", 0x16), attribute(DC, b"example", 0x16), attribute(UID, b"u")),
        "UID=u,DC=example,DC=org",
    ),
    (name((attribute(CN, b"a"), attribute(UNIT, b"b")), attribute(C, b"CZ")), "C=CZ,CN=a+OU=b"),
    (
        name(
            attribute("2.5.4.7", b"Prague"),
            attribute("2.5.4.8", b"Bohemia"),
            attribute("2.5.4.9", b"Celetna"),
        ),
        "STREET=Celetna,ST=Bohemia,L=Prague",
    ),
]


@pytest.mark.parametrize(("encoded", "spelled"), CASES)
def test_names_are_javas(encoded: bytes, spelled: str) -> None:
    assert name_of(encoded) == spelled


def test_what_java_takes_for_equal() -> None:
    plain = name(attribute(CN, b"Alice  Smith"), attribute(ORGANIZATION, b"Ottla"))
    assert canonical_name_of(plain) == canonical_name_of(
        name(attribute(CN, b" alice smith ", 0x13), attribute(ORGANIZATION, b"OTTLA"))
    )
    for other in (
        name(attribute(CN, b"AliceSmith"), attribute(ORGANIZATION, b"Ottla")),
        name(attribute(ORGANIZATION, b"Ottla"), attribute(CN, b"Alice Smith")),
        name(attribute(CN, b"Alice Smith,O=Ottla")),
        name(attribute(ORGANIZATION, b"Ottla,CN=Alice Smith")),
        name((attribute(CN, b"Alice Smith"), attribute(ORGANIZATION, b"Ottla"))),
    ):
        assert canonical_name_of(other) != canonical_name_of(plain)
    turned = [
        name((attribute(CN, b"a"), attribute(UNIT, b"b"))),
        name((attribute(UNIT, b"B"), attribute(CN, b"A"))),
    ]
    assert len(set(map(canonical_name_of, turned))) == 1


def test_a_certificate() -> None:
    found = read_certificate(
        certificate(
            name(attribute(CN, b"node")),
            tlv(0x82, b"localhost"),
            tlv(0x81, b"a@b"),
            tlv(0x86, b"spiffe://x"),
            tlv(0x87, bytes([127, 0, 0, 1])),
            tlv(0x87, bytes(15) + b"\1"),
            tlv(0x88, oid("1.2.3")[2:]),
            tlv(0xA4, name(attribute(CN, b"d"))),
            tlv(0xA0, oid("1.2.3"), tlv(0xA0, tlv(0x0C, b"x"))),
            issuer=name(attribute(CN, b"ca")),
        )
    )
    assert (found.name, name_of(found.issuer), found.serial, found.key_algorithm) == (
        "CN=node",
        "CN=ca",
        4711,
        "EC",
    )
    assert found.not_before == datetime(2024, 1, 1, tzinfo=UTC)
    assert found.not_after == datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)
    texts = {(kind, value) for kind, value in found.alt_names if isinstance(value, str)}
    assert texts == {
        *((2, "localhost"), (1, "a@b"), (6, "spiffe://x"), (7, "127.0.0.1"), (7, "0:0:0:0:0:0:0:1")),
        *((8, "1.2.3"), (4, "CN=d")),
    }
    assert len(found.alt_names) == 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x30",
        b"\x30\x80",
        b"\x30\x85\1\1\1\1\1",
        b"\x30\x84\xff\xff\xff\xff",
        b"\x1f\x81\x01\x00",
        sequence(b"") * 2,
        sequence(),
        sequence(sequence(), sequence(), sequence()),
        certificate(name(), until="20251331235959Z"),
        certificate(name(), until="2025"),
        certificate(sequence(b"\x02\x01\x01")),
        b"\x30\x80" * 100,
    ],
)
def test_what_is_no_certificate(data: bytes) -> None:
    with pytest.raises(DerError):
        read_certificate(data)


def test_lengths_that_come_later() -> None:
    """BER: a constructed value that is ended by two zeros, also within another, and an octet string in pieces."""
    inner = b"\x24\x80" + tlv(0x04, b"ab") + tlv(0x04, b"\0\0") + b"\0\0"
    value = read_one(b"\x30\x80" + inner + tlv(0x02, b"\5") + b"\0\0")
    octets, number = value.items()
    assert (octets.octets(), number.integer()) == (b"ab\0\0", 5)
    with pytest.raises(DerError):
        read_one(b"\x24\x80" * 40 + b"\0\0" * 40).octets()
