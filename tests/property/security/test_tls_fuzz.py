"""Stores, certificates, names and rules that anybody may have made: ConfigError (or DerError below it) and no other, in
bounded time and memory.

Good stores are changed in places and cut; values are made up from tags and lengths that mostly fit, so that readers get
beyond the first byte.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.der_writer import attribute, certificate, name, sequence, tlv
from tests.support.tls_stores import PASSWORD, Stores

from ottla.config.errors import ConfigError
from ottla.security.tls import decrypt
from ottla.security.tls import stores as reader
from ottla.security.tls.der import DerError, read, read_one
from ottla.security.tls.mapping import NoMatchingRule, SslPrincipalMapper
from ottla.security.tls.names import canonical_name_of, name_of, read_certificate
from ottla.security.tls.stores import StoreSettings, parse_store, read_key_store, read_trust_store

pytestmark = pytest.mark.xdist_group("keytool")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    stores = Stores(tmp_path_factory.mktemp("stores"))
    files = [
        stores.key_store("node", "JKS"),
        stores.key_store("node", "PKCS12"),
        stores.key_store("node", "PKCS12", legacy=True),
        stores.trust_store("ca", "PKCS12"),
        stores.trust_store("ca", "JKS"),
        stores.certificate("ca"),
    ]
    return [file.read_bytes() for file in files]


changes = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["set", "cut", "drop", "insert"]),
        st.binary(max_size=4),
    ),
    min_size=1,
    max_size=4,
)


def changed(data: bytes, how: list[tuple[float, str, bytes]]) -> bytes:
    for place, what, more in how:
        at = int(place * len(data))
        if what == "cut":
            data = data[:at]
        elif what == "drop":
            data = data[:at] + data[at + len(more) :]
        elif what == "insert":
            data = data[:at] + more + data[at:]
        else:
            data = data[:at] + more + data[at + len(more) :]
    return data


@settings(max_examples=300)
@given(which=st.integers(0, 5), how=changes, password=st.sampled_from([PASSWORD, None, ""]))
def test_stores_that_were_changed(
    good: list[bytes], which: int, how: list[tuple[float, str, bytes]], password: str | None
) -> None:
    data = changed(good[which], how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_read_file", lambda fault, path: data)
        patch.setattr(reader, "Budget", lambda: decrypt.Budget(iterations=200_000))
        for prefix, read_store in (("ssl.keystore", read_key_store), ("ssl.truststore", read_trust_store)):
            said = ""
            try:
                read_store(StoreSettings(prefix, None, "store", password, key_password=PASSWORD))
            except ConfigError as error:
                said = str(error)
            assert "\n" not in said
            assert PASSWORD not in said


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=60).map(lambda data: bytes.fromhex("feedfeed00000002") + data),
    )
)
def test_stores_that_were_made_up(data: bytes) -> None:
    for password in (None, PASSWORD):
        try:
            parse_store(data, password)
        except (reader.StoreError, DerError, decrypt.Unsupported, decrypt.WrongPassword):
            continue


tags = st.sampled_from([0x02, 0x04, 0x06, 0x0C, 0x13, 0x17, 0x18, 0x1E, 0x24, 0x30, 0x31, 0x82, 0xA0, 0xA3])
values = st.recursive(
    st.builds(tlv, tags, st.binary(max_size=12)),
    lambda inner: st.builds(lambda tag, parts: tlv(tag, *parts), tags, st.lists(inner, max_size=5)),
    max_leaves=20,
)


@settings(max_examples=300)
@given(
    st.one_of(
        values,
        st.builds(
            lambda parts: sequence(sequence(*parts), sequence(), sequence()), st.lists(values, max_size=9)
        ),
        st.binary(max_size=100),
    )
)
@example(b"\x30\x80" * 1000)
@example(b"\x30\x84\x7f\xff\xff\xff")
def test_values_that_were_made_up(data: bytes) -> None:
    for read_it in (read_certificate, name_of, canonical_name_of, lambda raw: read_one(raw).octets()):
        try:
            read_it(data)
        except DerError:
            continue


@settings(max_examples=200)
@given(how=changes)
def test_certificates_that_were_changed(how: list[tuple[float, str, bytes]]) -> None:
    whole = certificate(name(attribute("2.5.4.3", b"node")), tlv(0x82, b"localhost"), tlv(0xA4, name()))
    try:
        read_certificate(changed(whole, how))
    except DerError:
        return


@given(
    st.lists(st.tuples(st.sampled_from(["2.5.4.3", "2.5.4.10", "1.2.3"]), st.binary(max_size=20)), max_size=5)
)
def test_a_name_is_told_from_any_other(pairs: list[tuple[str, bytes]]) -> None:
    """However an attribute's value is chosen, it does not make another name: rules and ACLs would take it for that."""
    plain = [(kind, value) for kind, value in pairs if value.isascii()]
    parts = split(name_of(name(*(attribute(kind, value) for kind, value in plain))))
    assert len(parts) == max(len(plain), 1)
    assert all(part.count("=") == 1 and "+" not in part for part in parts if plain)


def split(spelled: str) -> list[str]:
    """At commas; what a backslash stands before is left out."""
    out = [""]
    escaped = False
    for char in spelled:
        if escaped or char == "\\":
            escaped = not escaped
        elif char == ",":
            out.append("")
        else:
            out[-1] += char
    return out


PIECES = (
    r"RULE: / /L DEFAULT , ( ) [ ] ^ $ $1 .* \ \d {2,3} (? ? + (?<n> ${n} a - && \Q \E \p{Alpha} \x41 | * \1"
)
rule_texts = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(PIECES.split()),
        max_size=14,
    ).map("".join),
)


@settings(max_examples=500)
@given(rules=rule_texts, named=st.text(max_size=12))
def test_rules_that_were_made_up(rules: str, named: str) -> None:
    try:
        SslPrincipalMapper(rules).name(named)
    except (ConfigError, NoMatchingRule):
        return


def test_the_longest_rules_are_read_in_time() -> None:
    """Of quadratic length in the worst case, which the bound on their length keeps short."""
    for rules in ("RULE:" * 1600, "RULE:a/" * 1100, "," * 8000, "RULE:" + "\\/" * 4000, " " * 8000 + "x"):
        with pytest.raises((ConfigError, NoMatchingRule)):
            SslPrincipalMapper(rules[:8192]).name("CN=x")


def test_blocks_that_nobody_ends_are_read_in_time() -> None:
    """Once over the text, however many begin; a search from each to the end would take hours."""
    for opened in ("-----BEGIN A-----", "-----BEGIN ", "-----BEGIN A-----\n-----END B-----\n", "-----"):
        assert list(reader.pem_blocks(opened * (reader.MAX_STORE_BYTES // len(opened)))) == []
    assert list(reader.pem_blocks("-----BEGIN A-----x-----BEGIN A-----y-----END A-----")) == [("A", "y")]
    with pytest.raises(ConfigError, match="hardly a store"):
        read_trust_store(StoreSettings("ssl.truststore", certificates="x" * (reader.MAX_STORE_BYTES + 1)))


def test_depth_and_counts_are_bounded(tmp_path: Path) -> None:
    deep = b""
    for _ in range(3000):
        deep = tlv(0x30, deep)
    with pytest.raises(DerError):
        read_certificate(deep)
    with pytest.raises(DerError, match="more than 20000 values"):
        name_of(tlv(0x30, b"\x31\x00" * 20_001))
    assert read(tlv(0x24, tlv(0x24, tlv(0x04, b"x"))))[0].octets() == b"x"
