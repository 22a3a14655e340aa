"""Java 17 and Apache's SslPrincipalMapper and KerberosShortNamer are asked what we are asked: names, rules, stores.

Names and rules are those of the unit tests and random ones. What we refuse Java may take (some of its regular
expressions have no equal here); what both take must come out the same, and what Java refuses we must refuse.
"""

from __future__ import annotations

import base64
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import fetch_jars
from tests.support.der_writer import attribute, name
from tests.support.tls_stores import PASSWORD, Stores, run_keytool
from tests.unit.security.sasl.test_kerberos import CASES as KERBEROS
from tests.unit.security.tls.test_mapping import CASES as RULES
from tests.unit.security.tls.test_mapping import REFUSED_BY_ALL
from tests.unit.security.tls.test_names import CASES as NAMES

from ottla.config.errors import ConfigError
from ottla.security.sasl import kerberos
from ottla.security.sasl.kerberos import KerberosShortNamer, parse_kerberos_name
from ottla.security.tls.der import DerError
from ottla.security.tls.mapping import NoMatchingRule, SslPrincipalMapper
from ottla.security.tls.names import name_of
from ottla.security.tls.stores import StoreSettings, pem_blocks, read_key_store, read_trust_store

pytestmark = pytest.mark.interop

JAVA = Path(__file__).resolve().parent / "java" / "Names.java"
SEED = 4711
ATOMS = (
    r"a b . \w \d \s \. [ab] [^a] [a-c] (a) (b|a) (?:ab) (?i:A) \1 ^ $ \Qa.\E \p{Lower} [\w-] (?<n>a) \x61"
)


class Java:
    """A JVM that answers, a line a question."""

    def __init__(self, where: Path) -> None:
        jars = f"{fetch_jars()}/*"
        subprocess.run(["javac", "-cp", jars, "-d", str(where), str(JAVA)], check=True, timeout=300)
        self._process = subprocess.Popen(
            ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{where}:{jars}", "Names"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: str | bytes) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        kind, *rest = words
        said = [str(kind), *(word.hex() if isinstance(word, bytes) else word.encode().hex() for word in rest)]
        self._process.stdin.write(" ".join(said) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    if "17." not in subprocess.run(["java", "-version"], capture_output=True, text=True).stderr:
        pytest.skip("later ones read BMPString as it is meant")
    asked = Java(tmp_path_factory.mktemp("classes"))
    yield asked
    asked.close()


def shown(text: str) -> str:
    return "=" + text.encode("utf-8", "replace").hex()


@pytest.mark.smoke
def test_names(java: Java) -> None:
    for encoded, spelled in NAMES:
        assert java.ask("name", encoded) == shown(spelled)


@pytest.mark.smoke
def test_random_names(java: Java) -> None:
    chance = random.Random(SEED)
    kinds = [
        "2.5.4.3",
        "2.5.4.10",
        "2.5.4.11",
        "2.5.4.9",
        "0.9.2342.19200300.100.1.25",
        "2.5.4.5",
        "1.2.840.113549.1.9.1",
    ]
    texts = [*'ab ,=+<>#;"\\\r\n\t\0', "é", "Ž", "🜨", "  "]
    for _ in range(500):
        parts: list[bytes | tuple[bytes, ...]] = []
        for _ in range(chance.randrange(5)):
            several = tuple(
                attribute(
                    chance.choice(kinds),
                    "".join(chance.choices(texts, k=chance.randrange(8))).encode(),
                    chance.choice([0x0C, 0x0C, 0x0C, 0x13, 0x16, 0x1B, 0x12]),
                )
                for _ in range(chance.choice([1, 1, 1, 2]))
            )
            parts.append(several)
        encoded = name(*parts)
        theirs = java.ask("name", encoded)
        if theirs == "refused":
            continue
        assert shown(name_of(encoded)) == theirs, encoded.hex()


def test_bytes_that_are_no_names(java: Java) -> None:
    chance = random.Random(SEED)
    good = [encoded for encoded, _ in NAMES if encoded]
    for _ in range(500):
        data = bytearray(chance.choice(good))
        data[chance.randrange(len(data))] = chance.randrange(256)
        theirs = java.ask("name", bytes(data))
        try:
            ours = shown(name_of(bytes(data)))
        except DerError:
            continue  # stricter than Java in places
        if theirs != "refused":
            assert ours == theirs, bytes(data).hex()


def ours(rules: str, named: str) -> str:
    try:
        mapper = SslPrincipalMapper(rules)
    except ConfigError:
        return "refused"
    try:
        return shown(mapper.name(named))
    except NoMatchingRule:
        return "none"


@pytest.mark.smoke
def test_rules(java: Java) -> None:
    for rules, named, user in RULES:
        assert java.ask("rules", rules, named) == ("none" if user is None else shown(user)), rules
    for rules in REFUSED_BY_ALL:
        assert java.ask("rules", rules, "CN=x") == "refused", rules


@pytest.mark.smoke
def test_random_rules(java: Java) -> None:
    chance = random.Random(SEED)
    atoms = ATOMS.split()
    marks = ["", "", "", "*", "+", "?", "{1,2}", "*?", "++"]
    ends = ["$1", "x", "$0", "$2", "\\$", "${n}", "", "$1$2", "$12", "a$"]
    taken = 0
    for _ in range(3000):
        pattern = "".join(chance.choice(atoms) + chance.choice(marks) for _ in range(chance.randrange(1, 5)))
        rules = f"RULE:{pattern}/{chance.choice(ends)}/{chance.choice(['', 'L', 'U'])}"
        named = "".join(chance.choices("aab.c", k=chance.randrange(5)))
        mine, theirs = ours(rules, named), java.ask("rules", rules, named)
        if mine == "refused":
            continue
        taken += 1
        assert mine == theirs, (rules, named)
    assert taken > 1000


# ---- Kerberos -----------------------------------------------------------------------------------------------


def short(rules: list[str], named: str) -> str:
    try:
        namer = KerberosShortNamer("REALM.COM", rules)
    except ConfigError:
        return "refused"
    try:
        return shown(namer.short_name(parse_kerberos_name(named)))
    except kerberos.NoMatchingRule:
        return "none"
    except ValueError:
        return "failed"


@pytest.mark.smoke
def test_kerberos_rules(java: Java) -> None:
    for named, rules, _ in KERBEROS:
        assert java.ask("kerberos", "\n".join(rules), named) == short(rules, named), (rules, named)
    for named in ("alice", "a/b", "a@b@c", "a/b/c@R", "a@R/b", "/@", "@", "", "a@", "@R"):
        assert java.ask("kerberos", "DEFAULT", named) == short(["DEFAULT"], named), named


@pytest.mark.smoke
def test_random_kerberos_rules(java: Java) -> None:
    chance = random.Random(SEED)
    atoms = [atom for atom in ATOMS.split() if not set(atom) & set("()/")]
    marks = ["", "", "", "*", "+", "?", "{1,2}", "*?"]
    ends = ["", "x", "$0", "\\$", "$0$0", "a$", "-"]
    formats = ["$1", "$0", "$1$0", "$2", "x$1y", "$1;$2", "$", "$3", "", "$01"]
    taken = 0

    def pattern() -> str:
        return "".join(chance.choice(atoms) + chance.choice(marks) for _ in range(chance.randrange(1, 4)))

    for _ in range(3000):
        rules = []
        for _ in range(chance.randrange(1, 3)):
            match = f"({pattern()})" if chance.random() < 0.5 else ""
            change = (
                f"s/{pattern()}/{chance.choice(ends)}/{chance.choice(['', 'g'])}"
                if chance.random() < 0.5
                else ""
            )
            case = chance.choice(["", "", "/L", "/U", "L", "/"])
            rules.append(f"RULE:[{chance.choice('112')}:{chance.choice(formats)}]{match}{change}{case}")
        if chance.random() < 0.3:
            rules.append("DEFAULT")
        words = ["".join(chance.choices("aAb.c", k=chance.randrange(4))) for _ in range(2)]
        realm = chance.choice(["REALM.COM", "OTHER", "a"])
        named = f"{words[0]}@{realm}" if chance.random() < 0.5 else f"{words[0]}/{words[1]}@{realm}"
        mine, theirs = short(rules, named), java.ask("kerberos", "\n".join(rules), named)
        if mine == "refused":
            continue
        taken += 1
        assert mine == theirs, (rules, named)
    assert taken > 1000


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


def asked(java: Java, path: Path, kind: str, algorithm: str = "EC") -> None:
    """Java and we take the same key out of a store, and trust the same."""
    theirs = java.ask("key", str(path), kind, PASSWORD, algorithm).split()
    try:
        found = read_key_store(StoreSettings("ssl.keystore", kind, str(path), PASSWORD))
        ((_, body),) = pem_blocks((found.private_key or b"").decode())
        mine = [base64.b64decode(body).hex(), *(one.hex() for one in found.chain)]
    except ConfigError as error:
        mine = ["none" if "no private key" in str(error) else "refused"]
    assert mine == theirs
    for password in (PASSWORD, ""):
        answer = java.ask("trust", str(path), kind, password)
        settings = StoreSettings("ssl.truststore", kind, str(path), password or None)
        try:
            trusted = " ".join(sorted(one.hex() for one in read_trust_store(settings).trusted))
        except ConfigError as error:
            trusted = "" if "none is marked" in str(error) else "refused"
        assert trusted == answer


def test_stores(java: Java, stores: Stores, tmp_path: Path) -> None:
    for kind in ("JKS", "PKCS12"):
        other = "JKS" if kind == "PKCS12" else "PKCS12"
        for path in (stores.key_store("node", kind), stores.trust_store("ca", kind), stores.everything):
            asked(java, path, kind)
            asked(java, path, other)
    asked(java, stores.key_store("node", "PKCS12", legacy=True), "PKCS12")
    for number in range(6):  # other aliases, in another order of the hash map
        several = tmp_path / f"several-{number}.p12"
        for alias in ("node", "client", "stranger"):
            run_keytool(
                *(
                    "-importkeystore",
                    "-srckeystore",
                    stores.everything,
                    "-srcstorepass",
                    PASSWORD,
                    "-noprompt",
                ),
                *("-srcalias", alias, "-destalias", f"{number * 77}-{alias}", "-destkeystore", several),
                *("-deststoretype", "PKCS12", "-deststorepass", PASSWORD),
            )
        asked(java, several, "PKCS12")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the store")
def test_stores_of_openssl(java: Java, stores: Stores, tmp_path: Path) -> None:
    found = read_key_store(
        StoreSettings("ssl.keystore", None, str(stores.key_store("node", "JKS")), PASSWORD)
    )
    text = (found.private_key or b"").decode() + stores.certificate("node").read_text()
    source = tmp_path / "node.pem"
    source.write_text(text + stores.certificate("ca").read_text())
    for number, how in enumerate(
        (
            *((), ("-name", "x"), ("-legacy",), ("-nomac",), ("-nokeys",), ("-caname", "y")),
            ("-keypbe", "PBE-SHA1-3DES", "-certpbe", "NONE"),
        )
    ):
        path = tmp_path / f"{number}.p12"
        subprocess.run(
            [
                "openssl",
                "pkcs12",
                "-export",
                "-in",
                source,
                "-out",
                path,
                "-passout",
                f"pass:{PASSWORD}",
                *how,
            ],
            check=True,
            capture_output=True,
        )
        asked(java, path, "PKCS12")
