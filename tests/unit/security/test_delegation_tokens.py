"""Credentials of tokens: made once each, and no more of them kept than there is room for."""

import base64

import pytest

from ottla.security import delegation_tokens
from ottla.security.delegation_tokens import DelegationTokenCache, TokenHmacs
from ottla.security.scram_credentials import MECHANISMS, MIN_ITERATIONS, credential_of

SHA_256, SHA_512 = MECHANISMS.values()


def test_a_credential_is_that_of_the_hmac_in_base64() -> None:
    password = base64.b64encode(TokenHmacs("key").hmac_of("id")).decode()
    made = DelegationTokenCache("key").credential(SHA_512, "id", b"salt")
    assert made == credential_of(SHA_512, password, b"salt", MIN_ITERATIONS)


def test_it_is_made_once_and_there_is_an_end_to_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "_CREDENTIALS_AT_MOST", 3)
    cache = DelegationTokenCache("key")
    first = cache.credential(SHA_256, "id", b"salt")
    assert cache.credential(SHA_256, "id", b"salt") is first
    assert cache.credential(SHA_256, "id", b"other") != first
    assert cache.credential(SHA_512, "id", b"salt") != first
    for number in range(5):
        cache.credential(SHA_256, f"id-{number}", b"salt")
        assert len(cache._made) <= 3
    assert cache.credential(SHA_256, "id", b"salt") == first
    assert "key" not in repr(cache)
