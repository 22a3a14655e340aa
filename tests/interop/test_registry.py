"""A schema registry that others wrote: the formats of topics with Apicurio's, which keeps its schemas in Ottla."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.test_ottla_client_cli import Cli
from tests.interop.apicurio.server import Apicurio
from tests.interop.process import free_ports
from tests.support.pipelines import write_pipeline
from tests.support.spark_world import Broker
from tests.support.standalone import ottla

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string", "default": "nobody"}],
}
INNER = 'syntax = "proto3"; package shop; message Who { string name = 1; }'
PROTO = """\
syntax = "proto3";
package shop;
import "who.proto";
message Cart { map<string, int32> items = 1; message Note { string text = 1; } repeated Note notes = 2; }
message Order { int64 id = 1; Who who = 2; optional int32 count = 3; Cart cart = 4; }
"""
JSON = {"type": "object", "properties": {"id": {"type": "integer"}, "who": {"type": "string"}}}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker") / "data", port=free_ports(1)[0]) as node:
        yield node


@pytest.fixture(scope="module")
def registry(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    with Apicurio(tmp_path_factory.mktemp("apicurio"), broker.address) as running:
        yield running


@pytest.fixture
def cli(broker: Broker) -> Cli:
    return Cli(broker.address)


def test_avro_with_a_schema_that_grows(cli: Cli, registry: Apicurio, tmp_path: Path) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(AVRO))
    words = ("--registry", registry.url)
    cli("topic", "create", "avro")
    cli("produce", "-t", "avro", *words, "--value-schema", str(schema), stdin=b'{"id": 1}\n')
    grown = {**AVRO, "fields": [*AVRO["fields"], {"name": "paid", "type": "boolean", "default": False}]}  # type: ignore[misc]
    schema.write_text(json.dumps(grown))
    cli("produce", "-t", "avro", *words, "--value-schema", str(schema), stdin=b'{"id": 2, "paid": true}\n')
    cli("produce", "-t", "avro", *words, stdin=b'{"id": 3}\n')
    out, _ = cli("consume", "-t", "avro", "-eq", *words)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"id": 1, "who": "nobody"},
        {"id": 2, "who": "nobody", "paid": True},
        {"id": 3, "who": "nobody", "paid": False},
    ]


def test_protobuf_with_an_import(cli: Cli, registry: Apicurio, tmp_path: Path) -> None:
    """Its schemas are text there, as people wrote it; there is no protoc here."""
    (tmp_path / "who.proto").write_text(INNER)
    schema = tmp_path / "order.proto"
    schema.write_text(PROTO)
    words = ("--registry", registry.url)
    row = {
        "id": "1",
        "who": {"name": "ada"},
        "count": 0,
        "cart": {"items": {"pen": 2}, "notes": [{"text": "x"}]},
    }
    cli("topic", "create", "protobuf")
    cli(
        *(
            "produce",
            "-t",
            "protobuf",
            *words,
            "--value-schema",
            str(schema),
            "--value-message",
            "shop.Order",
        ),
        stdin=json.dumps(row).encode(),
    )
    cli("produce", "-t", "protobuf", *words, "--value-message", "shop.Cart.Note", stdin=b'{"text": "within"}')
    out, _ = cli("consume", "-t", "protobuf", "-eq", *words)
    assert [json.loads(line) for line in out.splitlines()] == [row, {"text": "within"}]


def test_json(cli: Cli, registry: Apicurio, tmp_path: Path) -> None:
    schema = tmp_path / "order.json"
    schema.write_text(json.dumps(JSON))
    words = ("--registry", registry.url)
    cli("topic", "create", "json")
    cli("produce", "-t", "json", *words, "--value-schema", str(schema), stdin=b'{"id": 1, "who": "ada"}\n')
    out, _ = cli("consume", "-t", "json", "-eq", *words)
    assert out == '{"id": 1, "who": "ada"}\n'


def test_what_it_says_no_to(cli: Cli, registry: Apicurio, tmp_path: Path) -> None:
    cli("topic", "create", "bad")
    cli("produce", "-t", "bad", stdin=b"\0\0\0\x27\x0fx")
    _, err = cli("consume", "-t", "bad", "-eq", "--registry", registry.url, code=1)
    assert err.startswith("ottla: bad-0 at offset 0: schema id 9999 is unknown to the registry at http://")
    _, err = cli("produce", "-t", "bad", "--registry", registry.url, stdin=b"{}", code=1)
    assert "subject 'bad-value'" in err
    assert err.count("\n") == 1


def test_a_pipeline_from_avro_to_protobuf_while_the_registry_is_started_again(
    cli: Cli, broker: Broker, registry: Apicurio, tmp_path: Path
) -> None:
    """It has its schemas from Ottla again; an id that nobody registered is a dead letter with that reason."""
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(AVRO))
    (tmp_path / "who.proto").write_text(INNER)
    (tmp_path / "order.proto").write_text(PROTO)
    words = ("--registry", registry.url)
    for name in ("orders", "orders.out", "orders.bad"):
        cli("topic", "create", name)
    typed = b'{"id": 1, "who": "ada"}\n{"id": 2}\n'
    cli("produce", "-t", "orders", *words, "--value-schema", str(schema), stdin=typed)
    cli("produce", "-t", "orders", stdin=b"\0\0\0\x27\x0fx")
    registry.stop()
    registry.start()
    file = write_pipeline(
        tmp_path,
        f"""
        from pyspark.sql import functions as F

        REGISTRY = {registry.url!r}
        out = topic(
            "orders.out", format="protobuf", schema="order.proto", message="shop.Order", registry=REGISTRY
        )

        @pipeline.stream(out=out, dead_letter="orders.bad")
        def copy(rows=topic("orders", format="avro", registry=REGISTRY)):
            return rows.select("id", F.struct(F.col("who").alias("name")).alias("who"))
        """,
    )
    done = ottla(
        *("run", str(file), "-b", broker.address, "--available-now", "--state-dir", str(tmp_path / "state")),
        cwd=tmp_path,
    )
    logs = "\n".join(log.read_text()[-4000:] for log in sorted((tmp_path / "state").glob("*/logs/*.log")))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    out, _ = cli("consume", "-t", "orders.out", "-eq", *words)
    assert sorted((row["id"], row["who"]["name"]) for row in map(json.loads, out.splitlines())) == [
        ("1", "ada"),
        ("2", "nobody"),
    ]
    out, _ = cli("consume", "-t", "orders.bad", "-eq", "-J")
    (letter,) = map(json.loads, out.splitlines())
    assert letter["headers"][1].startswith(
        "the value has schema id 9999, which is unknown to the registry at "
    )
