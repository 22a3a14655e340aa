"""The three places settings come from, their order, and what is said of a mistake."""

from pathlib import Path

import pytest

from ottla.config.errors import ConfigError
from ottla.config.settings import Settings


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    file = tmp_path / "server.properties"
    file.write_text("node.id=5\nnum.partitions=2\n# comment\nlog.dirs=/data\n")
    return file


def _texts(settings: Settings) -> dict[str, str]:
    return {name: setting.text for name, setting in settings.by_key.items()}


def test_options_win_over_the_environment_and_that_over_the_file(properties: Path) -> None:
    settings = Settings.read(
        file=properties,
        environ={"KAFKA_NUM_PARTITIONS": "3", "KAFKA_LOG_DIRS": "/env"},
        overrides=["num.partitions=4", "num.partitions=5"],
    )
    assert _texts(settings) == {"node.id": "5", "num.partitions": "5", "log.dirs": "/env"}
    assert settings.origin("node.id") == f"{properties}, line 1"
    assert settings.origin("log.dirs") == "environment variable KAFKA_LOG_DIRS"
    assert settings.origin("num.partitions") == "-X"


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("KAFKA_LOG_DIRS", "log.dirs"),
        (
            "KAFKA_LISTENER_NAME_EXTERNAL_SSL_KEYSTORE_LOCATION",
            "listener.name.external.ssl.keystore.location",
        ),
        (
            "KAFKA_LISTENER_NAME_CLIENT_SCRAM___SHA___256_SASL_JAAS_CONFIG",
            "listener.name.client.scram-sha-256.sasl.jaas.config",
        ),
        ("KAFKA_LISTENER_NAME_MY__LISTENER_SSL_CLIENT_AUTH", "listener.name.my_listener.ssl.client.auth"),
        ("KAFKA_SUPER_USERS", "super.users"),
    ],
)
def test_variables_map_as_in_the_docker_image(variable: str, key: str) -> None:
    settings = Settings.read(environ={variable: "none"})
    assert _texts(settings) == {key: "none"}


def test_variables_of_the_jvm_and_of_clients_are_nobodys_settings() -> None:
    settings = Settings.read(
        environ={
            "KAFKA_OPTS": "-Dx",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_JMX_HOSTNAME": "h",
            "KAFKA_LOG4J_LOGGERS": "a=b",
            "KAFKA_LOG4J_ROOT_LOGLEVEL": "INFO",
            "KAFKA_GC_LOG_OPTS": "x",
            "KAFKA_JVM_PERFORMANCE_OPTS": "x",
            "KAFKA_VERSION": "4.3.1",
            "KAFKA_BOOTSTRAP_SERVERS": "localhost:9092",
            "KAFKA_HOME": "/opt/kafka",
            "PATH": "/bin",
        }
    )
    assert settings.by_key == {}
    assert settings.notes == []


def test_a_variable_that_resembles_no_key_is_noted_and_left_alone() -> None:
    settings = Settings.read(environ={"KAFKA_XYZZY_PLUGH": "1"})
    assert settings.by_key == {}
    assert settings.notes == ["environment variable KAFKA_XYZZY_PLUGH is no broker setting; ignored"]


def test_a_variable_that_is_nearly_a_key_is_told_with_that_key() -> None:
    settings = Settings.read(environ={"KAFKA_NUM_PARTITION": "1", "KAFKA_ZOOKEEPER_CONNECT": "z:2181"})
    assert settings.notes == [
        "ignored: unknown key num.partition (environment variable KAFKA_NUM_PARTITION); did you mean num.partitions?",
        "ignored: zookeeper.connect (environment variable KAFKA_ZOOKEEPER_CONNECT) is no longer a key: ZooKeeper is "
        "gone since Kafka 4.0",
    ]


def test_what_is_advertised_is_listened_for_everywhere_as_in_the_image() -> None:
    environ = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka.example:9092,EXTERNAL://host:19092"}
    settings = Settings.read(environ=environ)
    assert settings.text("listeners") == "PLAINTEXT://0.0.0.0:9092,EXTERNAL://0.0.0.0:19092"
    settings = Settings.read(environ=environ | {"KAFKA_LISTENERS": "PLAINTEXT://:9092"})
    assert settings.text("listeners") == "PLAINTEXT://:9092"
    settings = Settings.read(environ=environ | {"KAFKA_PROCESS_ROLES": "controller"})
    assert settings.text("listeners") is None


def test_listeners_of_a_file_stand_beside_what_is_advertised(properties: Path) -> None:
    properties.write_text("listeners=PLAINTEXT://:9092\n")
    settings = Settings.read(file=properties, environ={"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://h:9092"})
    assert settings.text("listeners") == "PLAINTEXT://:9092"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("log.segment.byte=1", "unknown key log.segment.byte (-X); did you mean log.segment.bytes?"),
        ("Log.Dirs=x", "unknown key Log.Dirs (-X); did you mean log.dirs?"),
        ("zzzz=1", "unknown key zzzz (-X); it is none of Kafka 4.3's broker keys"),
        ("num.partitions=0", "bad value '0' for num.partitions (-X): expected at least 1"),
        (
            "num.partitions=many",
            "bad value 'many' for num.partitions (-X): expected a whole number of 32 bits",
        ),
        ("delete.topic.enable=1", "bad value '1' for delete.topic.enable (-X): expected true or false"),
        (
            "compression.type=brotli",
            "bad value 'brotli' for compression.type (-X): expected one of uncompressed, zstd, lz4, snappy, gzip, "
            "producer",
        ),
        (
            "listener.name.internal.ssl.keystor.location=x",
            "unknown key listener.name.internal.ssl.keystor.location (-X); "
            "did you mean listener.name.internal.ssl.keystore.location?",
        ),
        (
            "zookeeper.connect=localhost:2181",
            "zookeeper.connect (-X) is no longer a key: ZooKeeper is gone since Kafka 4.0",
        ),
        ("num.partitions", "-X num.partitions: expected key=value"),
        ("=3", "-X =3: expected key=value"),
        (
            "controller.quorum.voters=1@localhost",
            "bad value '1@localhost' for controller.quorum.voters (-X): expected a list of id@host:port",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key_and_the_cure(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.read(overrides=[override])
    assert str(caught.value) == message


def test_a_mistake_in_a_file_names_the_line(properties: Path) -> None:
    properties.write_text("node.id=1\nnum.partitions=none\n")
    with pytest.raises(
        ConfigError, match=r"bad value 'none' for num.partitions \(.*server.properties, line 2\)"
    ):
        Settings.read(file=properties)


def test_what_nobody_knows_in_a_file_is_told_and_kept_as_in_kafka(properties: Path) -> None:
    properties.write_text(
        "offsets.topic.min.isr=1\nzookeeper.connect=z:2181\nacme.agent.url=${env:URL}\nnum.partitions=3\n"
        "listener.name.internal.ssl.keystor.location=x\n"
    )
    settings = Settings.read(file=properties)
    assert settings.notes == [
        f"ignored: unknown key offsets.topic.min.isr ({properties}, line 1); did you mean "
        "offsets.topic.num.partitions?",
        f"ignored: zookeeper.connect ({properties}, line 2) is no longer a key: ZooKeeper is gone since Kafka 4.0",
        f"ignored: unknown key acme.agent.url ({properties}, line 3); it is none of Kafka 4.3's broker keys",
        f"ignored: unknown key listener.name.internal.ssl.keystor.location ({properties}, line 5); did you mean "
        "listener.name.internal.ssl.keystore.location?",
        f"acme.agent.url ({properties}, line 3): there is no ${{env:URL}}",
    ]
    assert settings.text("offsets.topic.min.isr") == "1"
    assert settings.text("num.partitions") == "3"
    with pytest.raises(ConfigError, match=r"unknown key offsets.topic.min.isr \(-X\)"):
        Settings.read(file=properties, overrides=["offsets.topic.min.isr=2"])


def test_a_file_that_is_not_utf_8_is_latin_1_as_in_java(properties: Path) -> None:
    properties.write_bytes(b"broker.rack=Z\xfcrich\n")
    assert Settings.read(file=properties).text("broker.rack") == "Zürich"


def test_a_bad_escape_in_a_file_names_file_and_line(properties: Path) -> None:
    properties.write_text("broker.rack=\\uZZ\n")
    with pytest.raises(ConfigError, match=r"server.properties: line 1"):
        Settings.read(file=properties)


def test_settings_of_plugins_pass() -> None:
    settings = Settings.read(
        overrides=["rlmm.config.x=1", "config.providers.env.class=y", "super.users=User:a"]
    )
    assert len(settings.by_key) == 3
