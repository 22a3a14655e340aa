"""What clients are told, in their words; the password goes to standard output and nowhere else."""

from pathlib import Path

import pytest

from ottla.cli.main import load, main
from ottla.cli.security.client_settings import KINDS, UserSettings, properties, settings_for
from ottla.config.properties import parse_properties
from ottla.security.sasl.jaas import parse_jaas, username_and_password

Capture = pytest.CaptureFixture[str]
PASSWORD = 'p"w\\ ü=:#'


def told(protocol: str = "SASL_SSL", ca: str | None = "/ca.pem") -> UserSettings:
    return UserSettings("alice", PASSWORD, "SCRAM-SHA-512", "a:1,b:2", protocol, ca)


def evaluated(text: str, name: str) -> dict[str, object]:
    names: dict[str, object] = {"create_ssl_context": lambda cafile=None: f"context of {cafile}"}
    code = "\n".join(line for line in text.splitlines() if not line.startswith("from aiokafka"))
    exec(code, names)
    found = names[name]
    assert isinstance(found, dict)
    return found


def test_java_reads_back_what_was_meant() -> None:
    found = {name: value for name, value, _ in parse_properties(settings_for("java", told()))}
    assert found["ssl.truststore.location"] == "/ca.pem"
    (entry,) = parse_jaas(found["sasl.jaas.config"])
    assert username_and_password(entry) == ("alice", PASSWORD)
    assert settings_for("java", told()).isascii()


def test_librdkafka_has_its_own_names() -> None:
    lines = settings_for("librdkafka", told()).splitlines()
    assert f"sasl.password={PASSWORD}" in lines
    assert "ssl.ca.location=/ca.pem" in lines
    assert "sasl.mechanisms=SCRAM-SHA-512" in lines


def test_programs_in_python_can_run_it() -> None:
    python = evaluated(settings_for("kafka-python", told()), "settings")
    assert (python["bootstrap_servers"], python["sasl_plain_password"]) == (["a:1", "b:2"], PASSWORD)
    aio = evaluated(settings_for("aiokafka", told()), "settings")
    assert (aio["ssl_context"], aio["sasl_plain_password"]) == ("context of /ca.pem", PASSWORD)
    spark = evaluated(settings_for("spark", told()), "options")
    assert username_and_password(parse_jaas(str(spark["kafka.sasl.jaas.config"]))[0]) == ("alice", PASSWORD)


@pytest.mark.parametrize("kind", KINDS)
def test_without_tls_there_is_no_authority(kind: str) -> None:
    text = settings_for(kind, told("SASL_PLAINTEXT"))
    assert "/ca.pem" not in text
    assert "ssl_context" not in text


def test_a_password_is_in_no_repr() -> None:
    assert PASSWORD not in repr(told())


def test_every_client_that_is_offered_is_known() -> None:
    (kind,) = (
        each for each in load("user").commands["settings"].arguments if each.kwargs.get("dest") == "kind"
    )
    assert tuple(kind.kwargs["choices"]) == KINDS


@pytest.mark.parametrize("text", ["", " a", "a b", "=", "#x", "a\nb\\", "ü€\U0001f600", "tab\tx"])
def test_properties_are_read_back(text: str) -> None:
    written = properties({text or "k": text}).decode("ascii")
    assert [(name, value) for name, value, _ in parse_properties(written)] == [(text or "k", text)]


def test_the_command_takes_broker_and_authority_from_the_clients_file(
    tmp_path: Path, capsys: Capture
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    file = tmp_path / "client.properties"
    file.write_text(
        f"bootstrap.servers=h:9\nsecurity.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={ca}\n"
    )
    password = tmp_path / "password"
    password.write_text("geheim")
    words = ["user", "settings", "alice", "--password-file", str(password), "--command-config", str(file)]
    assert main([*words, "--for", "librdkafka"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "bootstrap.servers=h:9",
        "security.protocol=SASL_SSL",
        f"ssl.ca.location={ca}",
        "sasl.mechanisms=SCRAM-SHA-512",
        "sasl.username=alice",
        "sasl.password=geheim",
    ]
    assert "geheim" not in said.err
    ca.write_bytes(b"\x30\x82")
    assert main([*words, "--for", "librdkafka"]) == 1
    assert "is a store of Java's" in capsys.readouterr().err
    assert main([*words, "--for", "spark", "-X", "security.protocol=SSL"]) == 2
    assert "geheim" not in capsys.readouterr().err
