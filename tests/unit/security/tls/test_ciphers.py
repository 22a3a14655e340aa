"""Java's names of cipher suites, and what a context is left with."""

from __future__ import annotations

import logging
import ssl

import pytest

from ottla.config.errors import ConfigError
from ottla.security.tls import ciphers
from ottla.security.tls.ciphers import OPENSSL_NAMES, TLS12, TLS13, TLS13_SUITES, restrict

BOTH = (TLS12, TLS13)
RSA_GCM = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
can_set_newer = hasattr(ssl.SSLContext, "set_ciphersuites")


def server() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def older(context: ssl.SSLContext) -> list[str]:
    return [suite["name"] for suite in context.get_ciphers() if suite["protocol"] != TLS13]


def test_names_are_those_that_openssl_has() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    known = {suite["name"] for suite in context.get_ciphers()}
    assert [name for name in OPENSSL_NAMES.values() if name not in known] == []
    assert OPENSSL_NAMES["TLS_DHE_DSS_WITH_AES_256_CBC_SHA256"] == "DHE-DSS-AES256-SHA256"
    assert OPENSSL_NAMES["TLS_RSA_WITH_AES_128_CBC_SHA"] == "AES128-SHA"
    assert OPENSSL_NAMES["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"] == "ECDHE-ECDSA-CHACHA20-POLY1305"
    assert len(OPENSSL_NAMES) == 33


def test_suites_of_tls_1_2_in_their_order() -> None:
    context = server()
    named = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", RSA_GCM]
    assert restrict(context, named, BOTH, is_server=True) == {TLS12}
    assert older(context) == ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"]


def test_all_of_tls_1_3_or_none() -> None:
    assert restrict(server(), TLS13_SUITES, BOTH, is_server=True) == {TLS13}
    assert restrict(server(), (*TLS13_SUITES, RSA_GCM), BOTH, is_server=True) == {TLS12, TLS13}
    assert restrict(server(), (*TLS13_SUITES, RSA_GCM), (TLS12,), is_server=True) == {TLS12}


@pytest.mark.skipif(can_set_newer, reason="this Python can")
def test_some_of_tls_1_3_cannot_be_had() -> None:
    with pytest.raises(
        ConfigError, match="TLS_AES_128_GCM_SHA256, TLS_CHACHA20_POLY1305_SHA256 cannot be turned off"
    ):
        restrict(server(), ["TLS_AES_256_GCM_SHA384", RSA_GCM], BOTH, is_server=True)
    assert restrict(server(), ["TLS_AES_256_GCM_SHA384", RSA_GCM], (TLS12,), is_server=True) == {TLS12}


def test_a_python_that_can_set_them_does() -> None:
    class Newer(ssl.SSLContext):
        suites = ":".join(TLS13_SUITES)

        def set_ciphersuites(self, suites: str) -> None:
            self.suites = suites

        def get_ciphers(self):  # type: ignore[no-untyped-def]
            return [{"name": name, "protocol": TLS13} for name in self.suites.split(":")]

    context = Newer(ssl.PROTOCOL_TLS_SERVER)
    assert restrict(context, ["TLS_AES_256_GCM_SHA384"], (TLS13,), is_server=True) == {TLS13}
    assert context.suites == "TLS_AES_256_GCM_SHA384"


def test_what_is_never_used_is_said(caplog: pytest.LogCaptureFixture) -> None:
    unused = [
        *(
            "SSL_RSA_WITH_3DES_EDE_CBC_SHA",
            "TLS_ECDH_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_RSA_WITH_NULL_SHA256",
        ),
        *("TLS_DH_anon_WITH_AES_128_GCM_SHA256", "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384"),
    ]
    with caplog.at_level(logging.WARNING):
        left = restrict(
            server(), [*unused, RSA_GCM, "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"], BOTH, is_server=True
        )
    assert left == {TLS12}
    assert caplog.messages == [f"ssl.cipher.suites: {', '.join(unused)} cannot be used and will not be"]
    with pytest.raises(ConfigError, match=r"no suite that can be used with TLSv1.2 or TLSv1.3"):
        restrict(server(), unused, BOTH, is_server=True)
    with pytest.raises(ConfigError, match=r"no suite that can be used with TLSv1.3"):
        restrict(server(), [RSA_GCM], (TLS13,), is_server=True)


def test_a_client_can_use_dhe() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert restrict(context, ["TLS_DHE_RSA_WITH_AES_256_GCM_SHA384"], BOTH, is_server=False) == {TLS12}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA", f"; did you mean {RSA_GCM}"),
        ("ECDHE-RSA-AES256-GCM-SHA384", ""),
        ("tls_aes_128_gcm_sha256", ""),
        ("ALL:!x", ""),
        ("TLS_AES_128_CCM_SHA256", ""),
        (f"{RSA_GCM}:NULL", ""),
    ],
)
def test_a_name_that_nobody_knows(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"ssl.cipher.suites: unknown cipher suite '{name}'{hint}"):
        restrict(server(), [name, RSA_GCM], BOTH, is_server=True)
    assert ciphers.KEY == "ssl.cipher.suites"
