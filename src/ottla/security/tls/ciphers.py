"""Cipher suites: Java's names, which are IANA's, to OpenSSL's; and what of them Python can enforce.

Up to 3.14 Python sets suites for TLS 1.2 only (SSLContext.set_ciphers). Of TLS 1.3 all that OpenSSL offers are on, so
that a list with none of them turns TLS 1.3 off, a list with all of them changes nothing, and a list with some is
refused: a connection must not use what was ruled out. Newer ones have SSLContext.set_ciphersuites, which is used.

A suite that Java knows and never uses (RC4, 3DES, NULL and the like are disabled in it), or that OpenSSL does not have,
is passed over with a warning, since less is allowed and not more; a name that nobody knows is an error. Stateless.
"""

from __future__ import annotations

import difflib
import logging
import re
import ssl
from collections.abc import Collection, Iterable
from typing import Any, Final

from ottla.config.errors import ConfigError

log = logging.getLogger("ottla.security.tls")

KEY: Final = "ssl.cipher.suites"
TLS12: Final = "TLSv1.2"
TLS13: Final = "TLSv1.3"
TLS13_SUITES: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_AES: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
}
_CHACHA: Final = {"CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305"}
_CBC_SHA384: Final = {"AES_256_CBC_SHA384": "AES256-SHA384"}
_CBC_SHA256: Final = {"AES_256_CBC_SHA256": "AES256-SHA256"}
# How keys are agreed on and who proves it, with the ciphers that may follow.
_EXCHANGES: Final = {
    ("ECDHE_ECDSA", "ECDHE-ECDSA-"): _AES | _CBC_SHA384 | _CHACHA,
    ("ECDHE_RSA", "ECDHE-RSA-"): _AES | _CBC_SHA384 | _CHACHA,
    ("DHE_RSA", "DHE-RSA-"): _AES | _CBC_SHA256 | _CHACHA,
    ("DHE_DSS", "DHE-DSS-"): _AES | _CBC_SHA256,
    ("RSA", ""): _AES | _CBC_SHA256,
}
OPENSSL_NAMES: Final = {
    f"TLS_{java}_WITH_{cipher}": openssl + name
    for (java, openssl), ciphers in _EXCHANGES.items()
    for cipher, name in ciphers.items()
}
# Suites by which Java says something else than which ciphers it has.
_SIGNALS: Final = frozenset({"TLS_EMPTY_RENEGOTIATION_INFO_SCSV"})
# Java 17 takes these names and never uses them (jdk.tls.disabledAlgorithms); OpenSSL 3 has none of them.
_NEVER_USED: Final = re.compile(
    r"(TLS|SSL)_(ECDH_(ECDSA|RSA|anon)_WITH_\w+|\w*anon\w*_WITH_\w+|\w+_WITH_(NULL|RC4|3?DES)_\w+)", re.ASCII
)


def restrict(
    context: ssl.SSLContext, suites: Iterable[str], protocols: Collection[str], *, is_server: bool
) -> frozenset[str]:
    """Let a context have these suites only; the protocols that are left, since one without a suite cannot be spoken."""
    newer = {*TLS13_SUITES, *_offered(context, TLS13)}
    wanted = [_known(name, newer) for name in suites]
    left = set()
    if TLS13 in protocols and _restrict_newer(context, [name for name in wanted if name in newer]):
        left.add(TLS13)
    if TLS12 in protocols and _restrict_older(
        context, [name for name in wanted if name not in newer], is_server
    ):
        left.add(TLS12)
    if not left:
        raise ConfigError(f"{KEY}: no suite that can be used with {' or '.join(sorted(protocols))}", KEY)
    return frozenset(left)


def _known(name: str, newer: Collection[str]) -> str:
    if name in OPENSSL_NAMES or name in newer or name in _SIGNALS or _NEVER_USED.fullmatch(name):
        return name
    near = difflib.get_close_matches(name[:100], [*TLS13_SUITES, *OPENSSL_NAMES], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{KEY}: unknown cipher suite {name[:100]!r}{hint}", KEY)


def _restrict_newer(context: ssl.SSLContext, wanted: list[str]) -> bool:
    if not wanted:
        return False
    set_ciphersuites: Any = getattr(context, "set_ciphersuites", None)  # Python 3.15
    if set_ciphersuites is not None:
        set_ciphersuites(":".join(wanted))
    surplus = sorted(_offered(context, TLS13) - set(wanted))
    if surplus:
        raise ConfigError(
            f"{KEY}: {', '.join(surplus)} cannot be turned off one by one by this Python: name all suites of TLS 1.3 "
            "or none, or set ssl.enabled.protocols=TLSv1.2",
            KEY,
        )
    return True


def _restrict_older(context: ssl.SSLContext, wanted: list[str], is_server: bool) -> bool:
    names = [OPENSSL_NAMES[name] for name in wanted if name in OPENSSL_NAMES]
    if is_server:  # these need parameters that a context has none of
        names = [name for name in names if not name.startswith("DHE-")]
    if names:
        try:
            context.set_ciphers(":".join(names))
        except ssl.SSLError:  # none of them is there
            names = []
    usable = {java for java, openssl in OPENSSL_NAMES.items() if openssl in names}
    usable &= {java for java, openssl in OPENSSL_NAMES.items() if openssl in _offered(context, TLS12)}
    unused = [name for name in wanted if name not in {*usable, *_SIGNALS}]
    if unused:
        log.warning("%s: %s cannot be used and will not be", KEY, ", ".join(unused))
    return bool(usable)


def _offered(context: ssl.SSLContext, protocol: str) -> set[str]:
    """What a context would use with this protocol or, as OpenSSL counts, an older one."""
    return {
        suite["name"]
        for suite in context.get_ciphers()
        if (suite["protocol"] == TLS13) == (protocol == TLS13)
    }
