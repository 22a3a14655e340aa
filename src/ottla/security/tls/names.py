"""What certificates say of whom they name, in Java's words: X500Principal.getName() and getSubjectAlternativeNames().

Kafka takes the name in a client's certificate, as Java spells it, for the name of a user, and its rules
(`ssl.principal.mapping.rules`, see mapping.py) and ACLs are written to match that spelling. So it is Java 17's to the
letter, oddities included: attributes other than nine are numbers with hexadecimal values, and a value of two bytes a
character (BMPString) is read as if it were UTF-8.

Rules: a certificate may be anybody's; DerError is all that is raised. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ottla.security.tls.der import (
    BMP_STRING,
    CONSTRUCTED,
    CONTEXT,
    GENERAL_STRING,
    GENERALIZED_TIME,
    IA5_STRING,
    INTEGER,
    OBJECT_IDENTIFIER,
    PRINTABLE_STRING,
    SEQUENCE,
    SET,
    T61_STRING,
    UTC_TIME,
    UTF8_STRING,
    Der,
    DerError,
    read_one,
)

# RFC 2253's, and no others: an e-mail address, for one, is 1.2.840.113549.1.9.1=#16....
KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
KEY_ALGORITHMS: Final = {
    "1.2.840.113549.1.1.1": "RSA",
    "1.2.840.113549.1.1.10": "RSASSA-PSS",
    "1.2.840.10045.2.1": "EC",
    "1.2.840.10040.4.1": "DSA",
    "1.3.101.112": "EdDSA",
    "1.3.101.113": "EdDSA",
}
_STRINGS: Final = frozenset(
    {PRINTABLE_STRING, T61_STRING, IA5_STRING, GENERAL_STRING, BMP_STRING, UTF8_STRING}
)
_CANONICAL_STRINGS: Final = frozenset({PRINTABLE_STRING, UTF8_STRING})
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SPACES: Final = " \r"
_CONTROLS: Final = "".join(map(chr, range(33)))  # what Java's String.trim takes away
_SUBJECT_ALT_NAME: Final = "2.5.29.17"
# Kinds of alternative names (RFC 5280, GeneralName).
RFC822_NAME, DNS_NAME, DIRECTORY_NAME, URI, IP_ADDRESS, REGISTERED_ID = 1, 2, 4, 6, 7, 8
_TIMES: Final = {
    UTC_TIME: re.compile(r"(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)?Z", re.ASCII),
    GENERALIZED_TIME: re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)?(?:\.\d+)?Z", re.ASCII),
}

AltName = tuple[int, str | bytes]


@dataclass(frozen=True, slots=True)
class Certificate:
    """The parts of an X.509 certificate that are asked for here; whether it is to be trusted is OpenSSL's business."""

    serial: int
    issuer: bytes  # names as they are encoded
    subject: bytes
    not_before: datetime
    not_after: datetime
    key_algorithm: str
    alt_names: frozenset[AltName]

    @property
    def name(self) -> str:
        """The subject as Java's X500Principal.getName() has it."""
        return name_of(self.subject)


def read_certificate(data: bytes) -> Certificate:
    """A certificate in DER."""
    body = read_one(data).parts(3)[0]
    fields = body.parts(6)
    if fields[0].tag == CONTEXT | CONSTRUCTED:  # the version; that of the first one is left out
        fields = fields[1:]
    if len(fields) < 6:
        raise DerError("a certificate without all of its parts")
    serial, _, issuer, validity, subject, public_key = fields[:6]
    before, after = validity.parts(2)[:2]
    algorithm = public_key.parts(2)[0].parts(1)[0].oid()
    for name in (issuer, subject):
        _attributes(name.encoded)
    return Certificate(
        serial.expect(INTEGER).integer(),
        issuer.encoded,
        subject.encoded,
        _time(before),
        _time(after),
        KEY_ALGORITHMS.get(algorithm, algorithm),
        _alt_names(fields[6:]),
    )


def name_of(name: bytes) -> str:
    """A distinguished name (in DER) as Java's X500Principal.getName() spells it: RFC 2253, the last part first."""
    return ",".join(
        "+".join(f"{KEYWORDS.get(oid, oid)}={_spelled(oid, value)}" for oid, value in several)
        for several in reversed(_attributes(name))
    )


def canonical_name_of(name: bytes) -> str:
    """By which Java's X500Principal.equals compares: case and the number of spaces make no difference."""
    parts = []
    for several in reversed(_attributes(name)):
        spelled = [f"{KEYWORDS.get(oid, oid)}={_canonical(oid, value)}" for oid, value in several]
        parts.append("+".join(sorted(spelled)))
    return unicodedata.normalize("NFKD", ",".join(parts).upper().lower())


def _attributes(name: bytes) -> list[list[tuple[str, Der]]]:
    """Types and values, as they were written; those of one RDN together."""
    found = []
    for several in read_one(name).items():
        pairs = []
        for pair in several.items(SET):
            oid, value = pair.parts(2)[:2]
            pairs.append((oid.oid(), value))
        found.append(pairs)
    return found


def _spelled(oid: str, value: Der) -> str:
    if oid not in KEYWORDS or value.tag not in _STRINGS:
        return f"#{value.encoded.hex()}"
    text = "".join(
        f"\\{char}" if char in _ESCAPED else "\\00" if char == "\0" else char
        for char in value.content.decode("utf-8", "replace")
    )
    inner = text.lstrip(_SPACES)
    lead = text[: len(text) - len(inner)]
    middle = inner.rstrip(_SPACES)
    trail = inner[len(middle) :]
    return "".join(f"\\{char}" for char in lead) + middle + "".join(f"\\{char}" for char in trail)


def _canonical(oid: str, value: Der) -> str:
    if oid not in KEYWORDS or value.tag not in _CANONICAL_STRINGS:
        return f"#{value.encoded.hex()}"
    text = re.sub(r'[,+<>;"\\]|^#', r"\\\g<0>", value.content.decode("utf-8", "replace"))
    return re.sub(r" +", " ", text).strip(_CONTROLS)


def _time(value: Der) -> datetime:
    pattern = _TIMES.get(value.tag)
    found = None if pattern is None else pattern.fullmatch(value.content.decode("ascii", "replace"))
    if found is None:
        raise DerError("a time that is none")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
    if value.tag == UTC_TIME:
        year += 1900 if year >= 50 else 2000  # RFC 5280, 4.1.2.5.1
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise DerError("a time that is none") from None


def _alt_names(fields: list[Der]) -> frozenset[AltName]:
    for field in fields:
        if field.tag == CONTEXT | CONSTRUCTED | 3:
            for extension in field.items(CONTEXT | CONSTRUCTED | 3)[0:1]:
                for one in extension.items():
                    parts = one.parts(2)
                    if parts[0].oid() == _SUBJECT_ALT_NAME:
                        names = read_one(parts[-1].octets()).items(SEQUENCE)
                        return frozenset(_alt_name(name) for name in names)
    return frozenset()


def _alt_name(name: Der) -> AltName:
    kind = name.tag & 0x1F
    if kind in (RFC822_NAME, DNS_NAME, URI):
        return kind, name.content.decode("ascii", "replace")
    if kind == IP_ADDRESS:
        return kind, _address(name.content)
    if kind == REGISTERED_ID:
        return kind, Der(OBJECT_IDENTIFIER, name.content, name.encoded).oid()
    if kind == DIRECTORY_NAME:
        return kind, name_of(name.content)
    return kind, name.encoded


def _address(raw: bytes) -> str | bytes:
    """As Java writes it: an IPv6 address has all of its eight groups."""
    if len(raw) == 4:
        return ".".join(map(str, raw))
    if len(raw) == 16:
        return ":".join(f"{raw[at] << 8 | raw[at + 1]:x}" for at in range(0, 16, 2))
    return raw
