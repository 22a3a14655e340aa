"""Users and their SCRAM credentials, by the admin clients that can ask for them, and by `ottla user`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo
from confluent_kafka.admin import ScramMechanism as ConfluentMechanism
from confluent_kafka.admin import UserScramCredentialDeletion as ConfluentDeletion
from confluent_kafka.admin import UserScramCredentialUpsertion as ConfluentUpsertion
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialDeletion, UserScramCredentialUpsertion
from tests.clients.conftest import Wait
from tests.clients.test_ottla_client_cli import Cli

from ottla.client import Admin
from ottla.client.admin import types as t
from ottla.model.errors import ErrorCode, KafkaError

WAIT_S = 20
Described = dict[str, object]


def name() -> str:
    return f"user-{uuid.uuid4().hex[:12]}"


def described(address: str, user: str) -> Described | ErrorCode:
    """What Ottla's own client says of a user."""
    with Admin(bootstrap_servers=address) as admin:
        found = admin.describe_user_scram_credentials([user])[user]
    return (
        found.code if isinstance(found, KafkaError) else {info.mechanism: info.iterations for info in found}
    )


@pytest.mark.three_nodes
def test_librdkafka(address: str, in_step: Wait) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    user = name()

    def alter(*changes: ConfluentUpsertion | ConfluentDeletion) -> None:
        for future in admin.alter_user_scram_credentials(list(changes)).values():
            future.result(WAIT_S)
        in_step()

    info = ScramCredentialInfo(ConfluentMechanism.SCRAM_SHA_256, 8192)
    alter(ConfluentUpsertion(user, info, b"secret", b"salt-of-this"))
    alter(ConfluentUpsertion(user, ScramCredentialInfo(ConfluentMechanism.SCRAM_SHA_512, 4096), b"secret"))
    assert described(address, user) == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}
    found = admin.describe_user_scram_credentials([user])[user].result(WAIT_S)
    assert {(each.mechanism, each.iterations) for each in found.scram_credential_infos} == {
        (ConfluentMechanism.SCRAM_SHA_256, 8192),
        (ConfluentMechanism.SCRAM_SHA_512, 4096),
    }
    assert user in admin.describe_user_scram_credentials().result(WAIT_S)
    alter(ConfluentDeletion(user, ConfluentMechanism.SCRAM_SHA_256))
    with pytest.raises(KafkaException) as gone:
        alter(ConfluentDeletion(user, ConfluentMechanism.SCRAM_SHA_256))
    assert gone.value.args[0].code() == ErrorCode.RESOURCE_NOT_FOUND
    few = ScramCredentialInfo(ConfluentMechanism.SCRAM_SHA_512, 1)
    with pytest.raises(KafkaException) as weak:
        alter(ConfluentUpsertion(user, few, b"secret"))
    assert weak.value.args[0].code() == ErrorCode.UNACCEPTABLE_CREDENTIAL


@pytest.mark.three_nodes
def test_kafka_python(address: str, in_step: Wait) -> None:
    user = name()
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        change = UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_512, "secret", iterations=5000)
        assert admin.alter_user_scram_credentials([change]) == {user: None}
        in_step()
        assert user in str(admin.describe_user_scram_credentials([user]))
        assert described(address, user) == {"SCRAM-SHA-512": 5000}
        deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        assert admin.alter_user_scram_credentials([deletion]) == {user: None}
        in_step()
    assert described(address, user) is ErrorCode.RESOURCE_NOT_FOUND


@pytest.mark.three_nodes
def test_ottla(address: str, in_step: Wait) -> None:
    user, other = name(), name()
    with Admin(bootstrap_servers=address) as admin:
        changes = [
            t.UserScramCredentialUpsertion(user, "secret"),
            t.UserScramCredentialUpsertion(other, "secret", iterations=1),
        ]
        results = admin.alter_user_scram_credentials(changes)
        error = results[other]
        assert results[user] is None
        assert error is not None
        assert error.code is ErrorCode.UNACCEPTABLE_CREDENTIAL
        in_step()
        everybody = admin.describe_user_scram_credentials()
        assert everybody[user] == [t.ScramCredentialInfo("SCRAM-SHA-512", 4096)]
        assert other not in everybody
        assert admin.alter_user_scram_credentials([t.UserScramCredentialDeletion(user)]) == {user: None}
        with pytest.raises(KafkaError, match="SCRAM-MD5"):
            admin.alter_user_scram_credentials([t.UserScramCredentialDeletion(user, "SCRAM-MD5")])


def test_tokens_are_for_who_has_logged_in(address: str) -> None:
    """As with Kafka, nobody is known on a listener without authentication."""
    with Admin(bootstrap_servers=address) as admin:
        ways: list[Callable[[], object]] = [
            admin.create_delegation_token,
            admin.describe_delegation_tokens,
            lambda: admin.renew_delegation_token(b"secret-hmac"),
            lambda: admin.expire_delegation_token(b"secret-hmac"),
        ]
        for ask in ways:
            with pytest.raises(KafkaError) as refused:
                ask()
            assert refused.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert "secret-hmac" not in str(refused.value)


# --- the command


def test_the_command(address: str, tmp_path: Path) -> None:
    cli, user = Cli(address), name()
    _, err = cli("user", "add", user, "--password-stdin", stdin=b"pencil\n")
    assert err == f"user {user}: SCRAM-SHA-512 set\n"
    _, err = cli("user", "add", user, "--password-stdin", stdin=b"pencil\n", code=1)
    assert "has SCRAM-SHA-512 already" in err
    file = tmp_path / "password"
    file.write_text("pencil")
    words = ("-m", "SCRAM-SHA-256", "--iterations", "8192", "--password-file", str(file))
    cli("user", "add", user, *words)
    listed = json.loads(cli("user", "list", "-o", "json")[0])
    assert {"user": user, "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]} in listed
    _, err = cli("user", "alter", user, "--iterations", "5000", "--password-stdin", stdin=b"crayon\r\n")
    assert err == f"user {user}: SCRAM-SHA-256 and SCRAM-SHA-512 changed\n"
    out, err = cli("user", "describe", user, "nobody-of-that-name", code=1)
    rows = [line.split() for line in out.splitlines()]
    assert [user, "SCRAM-SHA-256", "5000"] in rows
    assert [user, "SCRAM-SHA-512", "5000"] in rows
    assert "nobody-of-that-name" in err
    cli("user", "delete", user, "-m", "SCRAM-SHA-256")
    assert described(address, user) == {"SCRAM-SHA-512": 5000}
    _, err = cli("user", "delete", user)
    assert err == f"user {user}: SCRAM-SHA-512 deleted\n"
    assert described(address, user) is ErrorCode.RESOURCE_NOT_FOUND
    _, err = cli("user", "delete", user, code=1)
    assert "there is no user" in err
    cli("user", "delete", user, "--if-exists")
    _, err = cli("user", "alter", user, "--password-stdin", stdin=b"x\n", code=1)
    assert "there is no user" in err


@pytest.mark.parametrize(
    ("words", "stdin", "code", "text"),
    [
        ((), b"pencil\n", 2, "--password-stdin or --password-file"),
        (("--password-stdin",), b"", 1, "empty"),
        (("--password-stdin",), b"\n", 1, "empty"),
        (("--password-stdin",), b"a\nb\n", 1, "more than one line"),
        (("--password-stdin",), b"\xff\xfe", 1, "UTF-8"),
        (("--password-stdin",), b"x" * 70_000, 1, "longer than any password"),
        (("--password-stdin", "--iterations", "1"), b"pencil", 1, "UNACCEPTABLE_CREDENTIAL"),
        (("--password-stdin", "--iterations", "1000000"), b"pencil", 1, "UNACCEPTABLE_CREDENTIAL"),
        (("--password", "pencil"), b"", 2, "unknown option '--password'"),
        (("--password-file", "/nowhere/at/all"), b"", 1, "/nowhere/at/all"),
    ],
)
def test_what_is_no_password(
    address: str, words: tuple[str, ...], stdin: bytes, code: int, text: str
) -> None:
    cli = Cli(address)
    _, err = cli("user", "add", name(), *words, stdin=stdin, code=code)
    assert text in err
    assert err.count("\n") == 1
    assert "pencil" not in err or words[:1] == ("--password",)


def test_a_password_is_asked_for_twice(address: str) -> None:
    user = name()
    assert by_hand(address, user, "pencil", "pencil") == 0
    assert described(address, user) == {"SCRAM-SHA-512": 4096}
    assert by_hand(address, name(), "pencil", "pencils") == 1


def by_hand(address: str, user: str, *answers: str) -> int:
    """`ottla user add` at a terminal."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "ottla.cli.main", "user", "add", user, "-b", address]
    # In a session of its own, where the only terminal is this one.
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    shown = b""
    with os.fdopen(terminal, "r+b", buffering=0) as screen:
        for prompt, answer in zip((b"Password of ", b"Again: "), answers, strict=True):
            while prompt not in shown:
                shown += screen.read(1024)
            screen.write(answer.encode() + b"\n")
        with suppress(OSError):  # what a terminal says when nobody is there any more
            while more := screen.read(1024):
                shown += more
    assert b"pencil" not in shown, "it is not echoed"
    return process.wait(60)


def test_tokens_by_the_command(address: str) -> None:
    cli = Cli(address)
    for words in (("create",), ("list",), ("renew", "x"), ("expire", "x")):
        _, err = cli("token", *words, code=1)
        assert "tokens are given only to who has logged in" in err
        assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in err
