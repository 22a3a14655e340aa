"""`ottla consume` and `ottla produce` with a schema registry, as a person uses them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.test_ottla_client_cli import Cli

from ottla.client.registry.framing import frame
from ottla.testing import Broker, Registry

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string", "default": "nobody"}],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def cli(broker: Broker) -> Cli:
    return Cli(broker.bootstrap_servers)


def test_values_are_typed_and_shown_as_json(cli: Cli, tmp_path: Path) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(SCHEMA))
    with Registry() as registry:
        words = ("--registry", registry.url)
        cli("topic", "create", "orders")
        typed = b'{"id": 1}\n{"id": 2, "who": "ada"}\n'
        cli("produce", "-t", "orders", *words, "--value-schema", str(schema), stdin=typed)
        cli("produce", "-t", "orders", *words, stdin=b'{"id": 3}\n')
        assert registry.subjects() == {"orders-value": [1]}
        out, _ = cli("consume", "-t", "orders", "-eq", *words)
        assert out == '{"id":1,"who":"nobody"}\n{"id":2,"who":"ada"}\n{"id":3,"who":"nobody"}\n'
        out, _ = cli("consume", "-t", "orders", "-eq", *words, "--filter", "value.who = ada")
        assert out == '{"id":2,"who":"ada"}\n'
        out, _ = cli("consume", "-t", "orders", "-eq", *words, "-g", "readers")
        assert out.count("\n") == 3
        _, err = cli("produce", "-t", "orders", *words, stdin=b'{"id": 4}\n{"id": "x"}\n', code=1)
        assert err == "ottla: record 2: the value field 'id' is \"x\", not long; those before it were sent\n"
        cli("produce", "-t", "orders", stdin=b"plain")
        out, err = cli("consume", "-t", "orders", "-eq", *words, code=1)
        assert out.count("\n") == 4
        assert err == (
            "ottla: orders-0 at offset 4: the value is not framed: it begins with 0x70, not with the magic byte 0; "
            "without --registry it is printed as it is\n"
        )


def test_the_settings_say_where_the_registry_is_and_who_asks(cli: Cli, tmp_path: Path) -> None:
    with Registry(user_info="me:s3cret") as registry:
        number = registry.register("bills-value", {"type": "object"}, "JSON")
        config = tmp_path / "client.properties"
        config.write_text(f"schema.registry.url={registry.url}\nbasic.auth.user.info=me:s3cret\n")
        cli("topic", "create", "bills")
        words = ("--registry", "-", "--command-config", str(config))
        _, err = cli("produce", "-t", "bills", *words, stdin=b'{"n": 1}')
        assert err == "1 record sent to bills\n"
        out, _ = cli("consume", "-t", "bills", "-eq", "--value-encoding", "hex")
        assert out.strip() == (frame(number) + b'{"n": 1}').hex()
        assert cli("consume", "-t", "bills", "-eq", *words)[0] == '{"n": 1}\n'
        wrong = ("--registry", registry.url, "-X", "basic.auth.user.info=me:wr0ng")
        _, err = cli("consume", "-t", "bills", "-eq", *wrong, code=1)
        assert "refuses access (status 401)" in err
        assert "wr0ng" not in err
        assert err.count("\n") == 1


def test_words_that_are_wrong(cli: Cli) -> None:
    cli("topic", "create", "wrong")
    _, err = cli("consume", "-t", "wrong", "-e", "--registry", "-", code=2)
    assert "--registry -: the settings have no schema.registry.url" in err
    _, err = cli("consume", "-t", "wrong", "-e", "--registry", "localhost:8081", code=2)
    assert "is no address of a registry" in err
    _, err = cli("produce", "-t", "wrong", "--value-schema", "x.avsc", code=2)
    assert "need --registry" in err
    _, err = cli(
        "produce", "-t", "wrong", "--registry", "http://127.0.0.1:1", "--value-schema", "x.avsc", code=2
    )
    assert "there is no file 'x.avsc'" in err
    _, err = cli("produce", "-t", "wrong", "--registry", "http://127.0.0.1:1", code=1)
    assert "the schema registry cannot be asked for subject 'wrong-value': http://127.0.0.1:1: " in err
    assert err.count("\n") == 1
