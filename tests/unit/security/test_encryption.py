"""Values that brokers cannot read: what is sealed opens, and nothing else does."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.security import encryption
from ottla.security.encryption import (
    HEADER,
    NONCE_BYTES,
    TAG_BYTES,
    EncryptionError,
    LeftSealed,
    Opener,
    Sealer,
    parse_header,
    sealed_key_id,
)
from ottla.security.keyring import FileKeyring


def keyring_file(path: Path, *ids: str) -> Path:
    """A keyring; the same id has the same key in each."""
    keys = [
        {"id": name, "key": base64.b64encode(name.encode().ljust(32, b"."))[:44].decode()} for name in ids
    ]
    path.write_text(json.dumps({"keys": keys}))
    path.chmod(0o600)
    return path


@pytest.fixture
def keyring(tmp_path: Path) -> FileKeyring:
    return FileKeyring(keyring_file(tmp_path / "keys.json", "k1"))


@pytest.mark.parametrize("value", [b"", b"x", b"secret" * 1000])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_what_is_sealed_opens(keyring: FileKeyring, key: bytes | None, value: bytes) -> None:
    others = [("trace", b"1"), ("none", None)]
    for headers in ([], others):
        stored, carried = Sealer(keyring).seal("t", key, value, headers)
        assert stored is not None
        assert len(stored) == len(value) + TAG_BYTES
        assert len(value) < 10 or value[:10] not in stored
        assert carried[-1][0] == HEADER
        opened, rest = Opener(keyring).open("t", key, stored, carried)
        assert (opened, list(rest)) == (value, headers)


def test_the_format(keyring: FileKeyring) -> None:
    """As docs/encryption.md says it, done by hand."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.keywrap import aes_key_unwrap

    stored, ((name, header),) = Sealer(keyring).seal("topic", b"key", b"value")
    assert name == "ottla.encryption"
    assert header is not None
    assert header[:4] == b"\x01\x02k1"
    assert header[4:6] == (40).to_bytes(2, "big")
    wrapped, nonce = header[6:46], header[46:]
    assert len(nonce) == 12
    data_key = aes_key_unwrap(b"k1".ljust(32, b"."), wrapped)
    vouched = b"ottla.encryption\0" + header[:46] + b"\0\x05topic" + b"\x01key"
    assert AESGCM(data_key).decrypt(nonce, stored or b"", vouched) == b"value"
    stored, ((_, header),) = Sealer(keyring).seal("topic", None, b"value")
    assert header is not None
    vouched = b"ottla.encryption\0" + header[:46] + b"\0\x05topic" + b"\0"
    cipher = AESGCM(aes_key_unwrap(b"k1".ljust(32, b"."), header[6:46]))
    assert cipher.decrypt(header[46:], stored or b"", vouched) == b"value"


def test_null_stays_null(keyring: FileKeyring) -> None:
    assert Sealer(keyring).seal("t", b"k", None, [("a", b"b")]) == (None, [("a", b"b")])
    assert Opener(keyring).open("t", b"k", None, ()) == (None, ())


def refused(opener: Opener, *record: Any) -> str:
    with pytest.raises(EncryptionError) as caught:
        opener.open(*record)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    return str(caught.value)


def test_a_value_cannot_be_moved(keyring: FileKeyring) -> None:
    value, headers = Sealer(keyring).seal("t", b"k", b"v")
    opener = Opener(keyring)
    assert opener.open("t", b"k", value, headers)[0] == b"v"
    for topic, key in (("other", b"k"), ("t", b"l"), ("t", None), ("t", b""), ("tk", b""), ("", b"tk")):
        assert "does not match" in refused(opener, topic, key, value, headers)
    empty, carried = Sealer(keyring).seal("t", b"", b"v")
    assert "does not match" in refused(opener, "t", None, empty, carried)


def test_every_byte_of_the_header_and_the_value_counts(keyring: FileKeyring) -> None:
    value, ((_, header),) = Sealer(keyring).seal("t", b"k", b"some value")
    assert value is not None
    assert header is not None
    opener = Opener(keyring)
    opener.open("t", b"k", value, [(HEADER, header)])  # so that its data key is known
    for data, rebuilt in ((header, lambda d: (value, d)), (value, lambda d: (d, header))):
        for at in range(len(data)):
            for flip in (0x01, 0x80, 0xFF):
                damaged = bytearray(data)
                damaged[at] ^= flip
                stored, carried = rebuilt(bytes(damaged))
                refused(opener, "t", b"k", stored, [(HEADER, carried)])
        for cut in range(len(data)):
            stored, carried = rebuilt(data[:cut])
            refused(opener, "t", b"k", stored, [(HEADER, carried)])
        stored, carried = rebuilt(data + b"\0")
        refused(opener, "t", b"k", stored, [(HEADER, carried)])


def test_nonces_and_headers_of_two_records_cannot_be_exchanged(keyring: FileKeyring) -> None:
    sealer, opener = Sealer(keyring), Opener(keyring)
    first, second = sealer.seal("t", b"k", b"one"), sealer.seal("t", b"k", b"two")
    assert "does not match" in refused(opener, "t", b"k", first[0], second[1])


def test_what_has_been_taken_away_is_noticed(keyring: FileKeyring) -> None:
    value, headers = Sealer(keyring).seal("t", b"k", b"v")
    opener = Opener(keyring)
    assert "null" in refused(opener, "t", b"k", None, headers)
    assert "not encrypted; encryption.allow.plaintext=true" in refused(opener, "t", b"k", value, ())
    assert "2 times" in refused(opener, "t", b"k", value, [*headers, *headers])
    assert "empty" in refused(opener, "t", b"k", value, [(HEADER, None)])
    assert "empty" in refused(opener, "t", b"k", value, [(HEADER, b"")])
    assert "version 2" in refused(opener, "t", b"k", value, [(HEADER, b"\x02" + (headers[0][1] or b"")[1:])])


def test_plain_values_by_a_setting(keyring: FileKeyring) -> None:
    opener = Opener(keyring, allow_plain=True)
    assert opener.open("t", b"k", b"plain", [("a", b"b")]) == (b"plain", [("a", b"b")])
    value, headers = Sealer(keyring).seal("t", b"k", b"v")
    assert opener.open("t", b"k", value, headers)[0] == b"v"
    assert "does not match" in refused(opener, "t", b"l", value, headers)


def test_a_producer_has_one_data_key_and_never_a_nonce_twice(keyring: FileKeyring) -> None:
    sealer = Sealer(keyring)
    found = [parse_header(sealer.seal("t", None, b"v")[1][0][1]) for _ in range(1000)]
    assert len({header.nonce for header in found}) == 1000
    assert len({header.wrapped for header in found}) == 1
    assert parse_header(Sealer(keyring).seal("t", None, b"v")[1][0][1]).wrapped != found[0].wrapped


def test_a_data_key_is_renewed_after_a_while_and_after_many_records(
    keyring: FileKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    sealer = Sealer(keyring, monotonic=lambda: now[0])

    def wrapped_after(records: int) -> bytes:
        for _ in range(records):
            header = sealer.seal("t", None, b"v")[1][0][1]
        return parse_header(header).wrapped

    first = wrapped_after(300)
    now[0] += encryption.MAX_DATA_KEY_AGE_S
    second = wrapped_after(300)
    assert second != first
    monkeypatch.setattr(encryption, "MAX_SEALED", 256)
    now[0] += encryption.MAX_DATA_KEY_AGE_S
    third = wrapped_after(256)
    assert wrapped_after(256) not in (first, second, third)


def test_a_fork_begins_with_another_data_key(keyring: FileKeyring) -> None:
    sealer = Sealer(keyring)
    sealer.seal("t", None, b"v")
    before = parse_header(sealer.seal("t", None, b"v")[1][0][1])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        header = sealer.seal("t", None, b"v")[1][0][1]
        os.write(writing, header or b"")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        after = parse_header(pipe.read())
    assert after.wrapped != before.wrapped
    assert parse_header(sealer.seal("t", None, b"v")[1][0][1]).wrapped == before.wrapped


def test_keys_are_rotated(tmp_path: Path) -> None:
    path = keyring_file(tmp_path / "keys.json", "old")
    now = [0.0]
    reader = Opener(FileKeyring(path))
    sealer = Sealer(FileKeyring(path), monotonic=lambda: now[0])
    first = sealer.seal("t", None, b"1")
    assert reader.open("t", None, *first)[0] == b"1"
    keyring_file(path, "old", "new")
    for _ in range(encryption.NONCES_AT_ONCE):
        assert parse_header(sealer.seal("t", None, b"1")[1][0][1]).key_id == "old"
    now[0] += encryption.MAX_DATA_KEY_AGE_S
    for _ in range(encryption.NONCES_AT_ONCE):
        second = sealer.seal("t", None, b"2")
    assert parse_header(second[1][0][1]).key_id == "new"
    # Whoever reads needs no restart, and what was sealed before is still read.
    assert reader.open("t", None, *second)[0] == b"2"
    assert reader.open("t", None, *first)[0] == b"1"
    # A key that has been taken out is not known any more.
    keyring_file(path, "new")
    assert "no key 'old'" in refused(Opener(FileKeyring(path)), "t", None, *first)


def test_the_same_id_with_another_key_opens_nothing(tmp_path: Path) -> None:
    sealed = Sealer(FileKeyring(keyring_file(tmp_path / "a.json", "k1"))).seal("t", None, b"v")
    other = tmp_path / "b.json"
    other.write_text(json.dumps({"keys": [{"id": "k1", "key": base64.b64encode(bytes(32)).decode()}]}))
    assert "not wrapped by the key 'k1'" in refused(Opener(FileKeyring(other)), "t", None, *sealed)


class Kms:
    """A key service in memory."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.key_id = "arn:aws:kms:eu-central-1:1:key/2"
        self.extra = b""

    def wrap(self, data_key: bytes) -> tuple[str, bytes]:
        self.calls.append("wrap")
        if self.error is not None:
            raise self.error
        return self.key_id, bytes(byte ^ 0x55 for byte in data_key) + self.extra

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        self.calls.append("unwrap")
        if self.error is not None:
            raise self.error
        return bytes(byte ^ 0x55 for byte in wrapped)


def test_a_key_service_is_asked_once_a_producer() -> None:
    kms = Kms()
    sealer, opener = Sealer(kms), Opener(kms)
    for topic in ("a", "b"):
        for _ in range(500):
            assert opener.open(topic, b"k", *sealer.seal(topic, b"k", b"v"))[0] == b"v"
    assert kms.calls == ["wrap", "unwrap"]


def test_data_keys_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "MAX_DATA_KEYS", 3)
    kms = Kms()
    opener = Opener(kms)
    for _ in range(10):
        assert opener.open("t", None, *Sealer(kms).seal("t", None, b"v"))[0] == b"v"
    assert len(opener._by_start) == len(opener._vouched) == 3


def test_a_key_service_that_fails_is_told_by_its_kind_alone() -> None:
    kms = Kms()
    sealed = Sealer(kms).seal("t", None, b"v")
    kms.error = RuntimeError("password hunter2 is wrong")
    words = refused(Opener(kms), "t", None, *sealed)
    assert "RuntimeError" in words
    assert "hunter2" not in words
    with pytest.raises(EncryptionError, match="no data key can be wrapped: RuntimeError"):
        Sealer(kms)
    kms.error = LookupError("the key was deleted in March")
    assert "deleted in March" in refused(Opener(kms), "t", None, *sealed)


def test_a_producer_that_gets_no_new_data_key_does_not_go_on_with_the_old_one() -> None:
    kms, now = Kms(), [0.0]
    sealer = Sealer(kms, monotonic=lambda: now[0])
    now[0] += encryption.MAX_DATA_KEY_AGE_S
    kms.error = OSError("away")
    for _ in range(3):
        with pytest.raises(EncryptionError, match="no data key"):
            sealer.seal("t", None, b"v")
    kms.error = None
    assert Opener(kms).open("t", None, *sealer.seal("t", None, b"v"))[0] == b"v"


@pytest.mark.parametrize(
    ("key_id", "extra", "words"),
    [("", b"", "0 bytes"), ("x" * 256, b"", "256 bytes"), ("k", bytes(4096), "more than 4096")],
)
def test_a_key_service_whose_answers_do_not_fit(key_id: str, extra: bytes, words: str) -> None:
    kms = Kms()
    kms.key_id, kms.extra = key_id, extra
    with pytest.raises(EncryptionError, match=words):
        Sealer(kms)


def test_a_data_key_of_another_size_is_refused() -> None:
    kms = Kms()
    kms.extra = b"x"
    sealed = Sealer(kms).seal("t", None, b"v")
    assert "33 bytes" in refused(Opener(kms), "t", None, *sealed)


def test_our_header_is_not_for_others(keyring: FileKeyring) -> None:
    with pytest.raises(EncryptionError, match=HEADER):
        Sealer(keyring).seal("t", None, b"v", [(HEADER, b"x")])


def test_who_has_no_key(keyring: FileKeyring) -> None:
    value, headers = Sealer(keyring).seal("t", None, b"v")
    assert sealed_key_id(headers) == "k1"
    assert sealed_key_id([("other", b"")]) is None
    assert sealed_key_id([(HEADER, b"\x09")]) == "?"
    assert LeftSealed().open("t", None, value, headers) == (value, headers)


def test_no_key_is_shown(keyring: FileKeyring) -> None:
    sealer = Sealer(keyring)
    secret = base64.b64encode(b"k1".ljust(32, b".")).decode()
    for each in (keyring, sealer, Opener(keyring)):
        assert secret not in repr(each)
        assert "k1." not in repr(each)


def test_the_header_is_no_longer_than_it_has_to_be(keyring: FileKeyring) -> None:
    header = Sealer(keyring).seal("t", None, b"v")[1][0][1]
    assert header is not None
    assert len(header) == 2 + len("k1") + 2 + 40 + NONCE_BYTES
    assert len(parse_header(header).nonce) == NONCE_BYTES
    for damaged in (header + b"\0", header[:-1]):
        with pytest.raises(ValueError, match="damaged"):
            parse_header(damaged)


def test_a_topic_that_cannot_be(keyring: FileKeyring) -> None:
    for topic in ("t" * 70_000, "\ud800"):
        with pytest.raises(EncryptionError, match="no topic"):
            Sealer(keyring).seal(topic, None, b"v")
