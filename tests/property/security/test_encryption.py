"""Any value comes back, and any other header, value, key or topic is refused with EncryptionError and nothing else."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.security.encryption import HEADER, EncryptionError, Opener, Sealer, parse_header
from ottla.security.keyring import FileKeyring


def _keyring(tmp_path_factory: pytest.TempPathFactory) -> FileKeyring:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps({"keys": [{"id": "k", "key": base64.b64encode(bytes(32)).decode()}]}))
    Path(path).chmod(0o600)
    return FileKeyring(path)


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> FileKeyring:
    return _keyring(tmp_path_factory)


@pytest.fixture(scope="module")
def sealer(keyring: FileKeyring) -> Sealer:
    return Sealer(keyring)


@pytest.fixture(scope="module")
def opener(keyring: FileKeyring) -> Opener:
    return Opener(keyring)


topics = st.text(min_size=1, max_size=20)
keys = st.none() | st.binary(max_size=20)
values = st.none() | st.binary(max_size=300)
headers = st.lists(
    st.tuples(st.text(max_size=10).filter(lambda n: n != HEADER), st.none() | st.binary(max_size=9))
)


@given(topics, keys, values, headers)
def test_round_trips(
    sealer: Sealer,
    opener: Opener,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    others: list[tuple[str, bytes | None]],
) -> None:
    stored, carried = sealer.seal(topic, key, value, others)
    opened, rest = opener.open(topic, key, stored, carried)
    assert (opened, list(rest)) == (value, others)


@given(topics, keys, st.binary(max_size=50), topics, keys)
def test_a_value_belongs_to_its_topic_and_key(
    sealer: Sealer,
    opener: Opener,
    topic: str,
    key: bytes | None,
    value: bytes,
    other: str,
    other_key: bytes | None,
) -> None:
    stored, carried = sealer.seal(topic, key, value)
    if (other, other_key) == (topic, key):
        assert opener.open(other, other_key, stored, carried)[0] == value
    else:
        with pytest.raises(EncryptionError):
            opener.open(other, other_key, stored, carried)


@given(st.binary(max_size=50), st.data())
def test_tampering(sealer: Sealer, opener: Opener, value: bytes, data: st.DataObject) -> None:
    stored, ((_, header),) = sealer.seal("t", b"k", value)
    assert stored is not None
    assert header is not None
    whole = header + stored
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EncryptionError):
        opener.open("t", b"k", bytes(changed[len(header) :]), [(HEADER, bytes(changed[: len(header)]))])


@given(st.binary(max_size=100))
@example(b"\x01\xff")
@example(b"\x01\x00\xff\xff" + bytes(80))
@example(b"\x01\x01k\x00\x28" + bytes(52))
@example(b"\x01\x02\xff\xfe\x00\x00" + bytes(12))
def test_garbage_as_a_header(opener: Opener, garbage: bytes) -> None:
    with pytest.raises(EncryptionError):
        opener.open("t", None, bytes(40), [(HEADER, garbage)])


@given(st.binary(min_size=14, max_size=100).map(lambda data: b"\x01" + data))
def test_a_header_that_parses_is_the_whole_of_it(data: bytes) -> None:
    try:
        parsed = parse_header(data)
    except ValueError:
        return
    rebuilt = bytes((1, len(parsed.key_id.encode()))) + parsed.key_id.encode()
    rebuilt += len(parsed.wrapped).to_bytes(2, "big") + parsed.wrapped + parsed.nonce
    assert rebuilt == data
