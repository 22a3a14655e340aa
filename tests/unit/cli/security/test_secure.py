"""What `ottla serve --secure` writes before a node starts on it."""

import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ottla.cli.args import CliError, UsageError, parse
from ottla.cli.main import main
from ottla.cli.security import secure as module
from ottla.cli.security.cert import authority_in
from ottla.cli.security.secure import SecureDirectory, listen_on
from ottla.cli.serve import COMMAND, _first_users, _secure_directory, load_config
from ottla.config.broker import BrokerConfig
from ottla.config.effective import check_protection
from ottla.config.properties import parse_properties
from ottla.config.settings import Settings
from ottla.security.sasl.jaas import parse_jaas, username_and_password
from ottla.security.scram_credentials import MECHANISMS, salted_password, stored_key
from ottla.security.tls.authority import key_store
from ottla.security.tls.contexts import certificate_changes
from ottla.security.tls.names import read_certificate
from ottla.security.tls.stores import StoreSettings, read_key_store
from ottla.server.network.channel_builders import ListenerTls, node_channels

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def secure(tmp_path: Path) -> SecureDirectory:
    made = SecureDirectory(tmp_path / "data-secure")
    made.prepare(tmp_path / "data", None)
    return made


def read(file: Path) -> dict[str, str]:
    return {name: value for name, value, _ in parse_properties(file.read_text())}


def config_of(secure: SecureDirectory, *words: str) -> BrokerConfig:
    return load_config(parse(COMMAND, ["--config", str(secure.server_properties), *words], "ottla serve"), {})


def own_certificate(secure: SecureDirectory) -> bytes:
    store = StoreSettings("ssl.keystore", "PEM", str(secure.folder / "node.pem"))
    return read_key_store(store).chain[0]


def test_only_the_owner_can_read_what_has_secrets(secure: SecureDirectory) -> None:
    secure.renew(config_of(secure))
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in secure.folder.iterdir()}
    assert modes == {
        "ca.key": 0o600,
        "ca.pem": 0o644,
        "client.properties": 0o600,
        "node.pem": 0o600,
        "server.properties": 0o600,
    }
    assert stat.S_IMODE(secure.folder.stat().st_mode) == 0o700
    data_dir = Path(read(secure.server_properties)["log.dirs"])
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700


def test_the_node_starts_on_what_was_written(secure: SecureDirectory, tmp_path: Path) -> None:
    config = config_of(secure)
    secure.renew(config)
    check_protection(config)
    assert config.log_dirs == (str(tmp_path / "data"),)
    assert config.is_quorum_by_itself
    assert {each.name: each.security_protocol for each in config.listeners} == {
        "SASL_SSL": "SASL_SSL",
        "CONTROLLER": "SSL",
    }
    for listener in ("SASL_SSL", "CONTROLLER"):
        ListenerTls(config, listener)
    assert node_channels(config).brokers.mechanism == "SCRAM-SHA-512"
    names = {value for _, value in read_certificate(own_certificate(secure)).alt_names}
    assert {"localhost", "127.0.0.1", socket.gethostname()} <= names


def test_the_first_users_have_the_passwords_of_the_files(secure: SecureDirectory) -> None:
    users = {record.name: record for record in secure.first_users()}
    assert set(users) == {"admin", "broker"}
    text = read(secure.client_properties)["sasl.jaas.config"]
    name, password = username_and_password(parse_jaas(text)[0])
    mechanism = MECHANISMS["SCRAM-SHA-512"]
    record = users[name]
    salted = salted_password(mechanism, password, record.salt, record.iterations)
    assert record.stored_key == stored_key(mechanism, salted)
    assert len(password) >= 32


def test_what_is_there_stays(secure: SecureDirectory, tmp_path: Path) -> None:
    before = {entry.name: entry.read_bytes() for entry in secure.folder.iterdir()}
    secure.prepare(tmp_path / "data", 1234)
    assert {entry.name: entry.read_bytes() for entry in secure.folder.iterdir()} == before
    secure.renew(config_of(secure))
    assert not secure.renew(config_of(secure))
    assert not secure.renew()


def test_two_nodes_have_nothing_in_common(secure: SecureDirectory, tmp_path: Path) -> None:
    other = SecureDirectory(tmp_path / "other")
    other.prepare(tmp_path / "other-data", None)
    for file in ("ca.pem", "ca.key"):
        assert (other.folder / file).read_bytes() != (secure.folder / file).read_bytes()
    assert other.client_properties.read_bytes() != secure.client_properties.read_bytes()


def test_a_start_that_came_to_no_end_is_finished(secure: SecureDirectory, tmp_path: Path) -> None:
    secure.server_properties.unlink()
    (secure.folder / "ca.pem").unlink()
    secure.prepare(tmp_path / "data", None)
    secure.renew(config_of(secure))
    assert len(secure.first_users()) == 2


def test_two_that_start_at_once_have_the_same_users(tmp_path: Path) -> None:
    """Whoever came second would have written other passwords over those that the cluster was made with."""
    made = SecureDirectory(tmp_path / "data-secure")
    with ThreadPoolExecutor(6) as threads:

        def start(_: int) -> tuple[bytes, bytes, bytes]:
            made.prepare(tmp_path / "data", None)
            files = (made.server_properties, made.client_properties, made.folder / "ca.pem")
            server, client, ca = (file.read_bytes() for file in files)
            return server, client, ca

        found = list(threads.map(start, range(6)))
    assert len(set(found)) == 1


def test_a_certificate_is_renewed_in_time_with_its_names(
    secure: SecureDirectory, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    secure.renew(config_of(secure))
    old = own_certificate(secure)
    authority = authority_in(secure.folder)
    late = authority.renew(old, days=90, now=datetime.now(UTC) - timedelta(days=70))
    (secure.folder / "node.pem").write_bytes(key_store(late))
    capsys.readouterr()
    assert secure.renew()
    assert "renewed, 19 days before" in capsys.readouterr().err
    new = own_certificate(secure)
    assert certificate_changes([old], [new], False, False) is None
    assert not secure.renew()


def test_what_is_in_the_way_of_a_renewal_is_one_line(secure: SecureDirectory, capsys: Capture) -> None:
    secure.renew(config_of(secure))
    for file, content in (("node.pem", b"garbage"), ("ca.key", b"garbage"), ("ca.pem", None)):
        path = secure.folder / file
        before = path.read_bytes()
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        if file == "ca.key":
            (secure.folder / "node.pem").unlink()
        capsys.readouterr()
        assert not secure.renew_while_running()
        said = capsys.readouterr().err
        assert said.startswith("ottla: the certificate cannot be renewed: ")
        assert said.count("\n") == 1
        path.write_bytes(before)
        secure.renew(config_of(secure))


def test_a_new_authority_signs_anew(secure: SecureDirectory, tmp_path: Path) -> None:
    secure.renew(config_of(secure))
    other = SecureDirectory(tmp_path / "other")
    other.prepare(tmp_path / "other-data", None)
    for file in ("ca.pem", "ca.key"):
        (secure.folder / file).write_bytes((other.folder / file).read_bytes())
    assert secure.renew()
    assert authority_in(secure.folder).has_signed(own_certificate(secure))


def test_a_host_that_is_advertised_is_in_the_certificate(secure: SecureDirectory) -> None:
    secure.renew(config_of(secure))
    more = config_of(secure, "-X", "advertised.listeners=SASL_SSL://kafka.example:9092")
    assert secure.renew(more)
    assert "kafka.example" in {value for _, value in read_certificate(own_certificate(secure)).alt_names}
    assert not secure.renew(more)


def test_a_machine_whose_name_is_none_for_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "büro " * 20)
    secure = SecureDirectory(tmp_path / "s")
    secure.prepare(tmp_path / "data", None)
    assert secure.renew(config_of(secure))
    assert not secure.renew(config_of(secure))


def test_data_without_users_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    with pytest.raises(CliError, match="formatted already, without the users"):
        SecureDirectory(tmp_path / "data-secure").prepare(tmp_path / "data", None)
    assert not (tmp_path / "data-secure").exists()


@pytest.mark.parametrize("port", [0, 4711])
def test_a_port_is_for_this_start(secure: SecureDirectory, port: int) -> None:
    settings = Settings.read(file=secure.server_properties, environ={}, overrides=[])
    listen_on(settings, port)
    config = BrokerConfig.from_settings(settings)
    assert [each.port for each in config.listeners] == ([0, 0] if not port else [4711, 4712])
    assert config.is_quorum_by_itself


def test_the_directory_is_beside_the_data_or_where_it_is_said_to_be(tmp_path: Path) -> None:
    words = ["--data-dir", str(tmp_path / "d"), "--secure"]
    args = parse(COMMAND, words, "ottla serve")
    assert _secure_directory(args, {}).folder == tmp_path / "d-secure"
    assert args.config == str(tmp_path / "d-secure" / "server.properties")
    args = parse(COMMAND, [*words, str(tmp_path / "keys"), "--port", "5"], "ottla serve")
    secure = _secure_directory(args, {})
    assert secure.folder == tmp_path / "keys"
    assert read(secure.client_properties)["bootstrap.servers"] == "127.0.0.1:5"
    assert len(_first_users(secure, load_config(args, {}))) == 2
    with pytest.raises(UsageError, match="leave --config out"):
        _secure_directory(parse(COMMAND, ["--secure", "--config", "x"], "ottla serve"), {})


def test_looking_makes_nothing(tmp_path: Path, capsys: Capture) -> None:
    assert main(["serve", "--secure", "--check-security", "--data-dir", str(tmp_path / "d")]) == 1
    assert "there is no secure node yet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_weak_about_it_but_disks(secure: SecureDirectory, capsys: Capture) -> None:
    secure.renew(config_of(secure))
    capsys.readouterr()
    main(["serve", "--check-security", "--config", str(secure.server_properties)])
    lines = [line for line in capsys.readouterr().out.splitlines() if "disk" not in line]
    if module._authorization():
        assert lines == []
    else:
        assert [line.partition(":")[0] for line in lines] == ["there is no authorizer.class.name"]
