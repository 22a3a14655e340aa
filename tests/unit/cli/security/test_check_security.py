"""`ottla serve --check-security`: what is weak is found and named, and what is not is not."""

import os
from pathlib import Path

import pytest
from tests.support.certificates import Authority

from ottla.cli.main import main
from ottla.cli.security.check_security import findings, on_encrypted_disk
from ottla.config.broker import BrokerConfig
from ottla.config.settings import Settings
from ottla.metadata.features import LATEST_METADATA_VERSION
from ottla.metadata.records import AccessControlEntryRecord, MetadataRecord, RemoveAccessControlEntryRecord
from ottla.metadata.serde import build_record_batch, encode_records
from ottla.metadata.snapshot import SnapshotId, checkpoint_batches, write_checkpoint
from ottla.model.ids import Uuid, random_uuid
from ottla.security.acls import AclOperation, AclPermissionType, PatternType, ResourceType

Capture = pytest.CaptureFixture[str]
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PLAIN_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="geheim";'


def found(tmp_path: Path, given: dict[str, object]) -> list[str]:
    settings = Settings.of({"log.dirs": str(tmp_path / "data"), **given})
    lines = [str(each) for each in findings(BrokerConfig.from_settings(settings), settings)]
    assert not [line for line in lines if "geheim" in line or "\n" in line]
    return [line for line in lines if "disk" not in line]


def secured(authority: Authority, where: Path, *, days: int = 60) -> dict[str, object]:
    """Nothing is weak about it."""
    identity = authority.issue(days=days)
    store = where / "node.pem"
    store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
    store.chmod(0o600)
    return {
        "listeners": "SASL_SSL://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": "SASL_SSL://localhost:9092",
        "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.certificate,
        "authorizer.class.name": AUTHORIZER,
    }


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca", days=100)


def test_nothing_is_said_of_what_is_well(authority: Authority, tmp_path: Path) -> None:
    assert found(tmp_path, secured(authority, tmp_path)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"listeners": "SASL_SSL://127.0.0.1:9092,CONTROLLER://10.0.0.5:9093"},
            "listener CONTROLLER has PLAINTEXT and is reached from other machines",
        ),
        (
            {
                "listener.security.protocol.map": "SASL_SSL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "listeners": "SASL_SSL://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN_JAAS,
            },
            "listener SASL_SSL has PLAIN without TLS",
        ),
        (
            {"listener.security.protocol.map": "SASL_SSL:SSL,CONTROLLER:PLAINTEXT"},
            "listener SASL_SSL has SSL without ssl.client.auth=required",
        ),
        (
            {"ssl.endpoint.identification.algorithm": ""},
            "listener SASL_SSL has an empty ssl.endpoint.identification.algorithm",
        ),
        ({"authorizer.class.name": ""}, "there is no authorizer.class.name"),
        ({"allow.everyone.if.no.acl.found": "true"}, "allow.everyone.if.no.acl.found is true"),
        ({"ssl.keystore.location": "/no/such/file"}, "cannot tell: /no/such/file"),
    ],
)
def test_what_is_weak_is_one_line(
    authority: Authority, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    lines = found(tmp_path, {**secured(authority, tmp_path), **change})
    assert [line for line in lines if line.startswith(words)], lines


@pytest.mark.parametrize(("days", "words"), [(-1, "has expired"), (10, "expires in 9 days")])
def test_certificates_that_end(authority: Authority, tmp_path: Path, days: int, words: str) -> None:
    lines = found(tmp_path, secured(authority, tmp_path, days=days))
    assert f"the certificate of CN=localhost {words}" in lines[0]


def test_stores_that_do_not_belong_together(authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign", "Foreign", days=100)
    given = {**secured(authority, tmp_path), "ssl.truststore.location": foreign.certificate}
    (line,) = found(tmp_path, given)
    assert "does not vouch for the node's own certificate" in line


@pytest.mark.parametrize(("mode", "whom"), [(0o640, "its group"), (0o604, "everybody"), (0o622, "everybody")])
def test_files_that_others_can_read(authority: Authority, tmp_path: Path, mode: int, whom: str) -> None:
    given = secured(authority, tmp_path)
    (tmp_path / "node.pem").chmod(mode)
    (line,) = found(tmp_path, given)
    assert f"can be read or written by {whom}: chmod 600 " in line


@pytest.mark.parametrize(("mode", "is_weak"), [(0o700, False), (0o750, False), (0o755, True), (0o701, True)])
def test_data_that_others_can_read(authority: Authority, tmp_path: Path, mode: int, is_weak: bool) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(mode)
    lines = found(tmp_path, secured(authority, tmp_path))
    assert [line.endswith(f"chmod 700 {tmp_path / 'data'}") for line in lines] == [True] * is_weak


def test_a_file_with_passwords_that_others_can_read(
    authority: Authority, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "server.properties"
    lines = [f"{name}={value}" for name, value in secured(authority, tmp_path).items()]
    file.write_text("\n".join([*lines, f"log.dirs={tmp_path / 'data'}", "ssl.key.password=geheim"]))
    file.chmod(0o644)
    assert main(["serve", "--check-security", "--config", str(file)]) == 1
    said = capsys.readouterr()
    assert f"{file} (ssl.key.password) can be read or written by everybody: chmod 600 {file}" in said.out
    assert "geheim" not in said.out + said.err
    assert not (tmp_path / "data").exists()


def test_a_password_on_the_command_line(authority: Authority, tmp_path: Path, capsys: Capture) -> None:
    given = {**secured(authority, tmp_path), "log.dirs": tmp_path / "data"}
    words = [word for name, value in given.items() for word in ("-X", f"{name}={value}")]
    assert main(["serve", "--check-security", *words, "-X", "ssl.key.password=geheim"]) == 1
    said = capsys.readouterr()
    assert "ssl.key.password is given with -X: everybody on this machine can read command lines" in said.out
    assert "geheim" not in said.out + said.err


# ---- access rules ---------------------------------------------------------------------------------------------


def rule(principal: str, name: str, operation: AclOperation, **more: object) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=more.get("id") or random_uuid(),  # type: ignore[arg-type]
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        pattern_type=PatternType.LITERAL,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=more.get("permission", AclPermissionType.ALLOW),  # type: ignore[arg-type]
    )


def write_log(data_dir: Path, in_snapshot: list[MetadataRecord], after: list[MetadataRecord]) -> None:
    folder = data_dir / "__cluster_metadata-0"
    folder.parent.mkdir(mode=0o700)
    folder.mkdir()
    batches = checkpoint_batches(
        in_snapshot,
        metadata_version=LATEST_METADATA_VERSION,
        epoch=1,
        last_contained_log_timestamp_ms=0,
        now_ms=0,
    )
    write_checkpoint(folder / SnapshotId(10, 1).file_name, batches)
    frames = encode_records(after, LATEST_METADATA_VERSION)
    batch = build_record_batch(frames, base_offset=10, leader_epoch=1, now_ms=0)
    (folder / f"{10:020d}.log").write_bytes(batch + b"a half-written end")


def test_rules_that_are_too_wide_are_found_in_the_nodes_own_log(authority: Authority, tmp_path: Path) -> None:
    gone: Uuid = random_uuid()
    write_log(
        tmp_path / "data",
        [
            rule("User:*", "public", AclOperation.READ),
            rule("User:bob", "*", AclOperation.ALL, id=gone),
            rule("User:carol", "orders", AclOperation.ALL),
            rule("User:*", "secret", AclOperation.ALL, permission=AclPermissionType.DENY),
        ],
        [RemoveAccessControlEntryRecord(id=gone), rule("User:dave", "*", AclOperation.ALL)],
    )
    lines = found(tmp_path, secured(authority, tmp_path))
    assert [line.split(" from host")[0] for line in lines] == [
        "a rule is too wide: ALLOW READ to User:*",
        "a rule is too wide: ALLOW ALL to User:dave",
    ]
    without = found(tmp_path, {**secured(authority, tmp_path), "authorizer.class.name": ""})
    assert without[0].startswith(
        "there are 4 access rules and no authorizer.class.name: nobody is held to them"
    )


def test_a_damaged_log_is_something_not_known(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "__cluster_metadata-0"
    folder.parent.mkdir(mode=0o700)
    folder.mkdir()
    (folder / SnapshotId(10, 1).file_name).write_bytes(b"garbage")
    (line,) = found(tmp_path, secured(authority, tmp_path))
    assert line.startswith("cannot tell: access rules")


# ---- disks ----------------------------------------------------------------------------------------------------


def device(where: Path, name: str, uuid: str | None, *below: Path) -> Path:
    """A block device as /sys shows it."""
    made = where / name
    (made / "slaves").mkdir(parents=True)
    if uuid is not None:
        (made / "dm").mkdir()
        (made / "dm" / "uuid").write_text(uuid + "\n")
    for each in below:
        (made / "slaves" / each.name).symlink_to(each)
    return made


def test_disks_are_known_by_what_they_are_made_of(tmp_path: Path) -> None:
    sys_block = tmp_path / "block"
    sys_block.mkdir()
    number = os.stat(tmp_path).st_dev
    link = sys_block / f"{os.major(number)}:{os.minor(number)}"
    assert on_encrypted_disk(tmp_path, sys_block) is None
    disk = device(tmp_path / "devices", "sda", None)
    crypt = device(tmp_path / "devices", "dm-0", "CRYPT-LUKS2-x", disk)
    for top, expected in (
        (disk, False),
        (crypt, True),
        (device(tmp_path / "devices", "dm-1", "LVM-x", crypt), True),
        (device(tmp_path / "devices", "dm-2", "LVM-y", crypt, disk), False),
    ):
        link.symlink_to(top)
        assert on_encrypted_disk(tmp_path / "not" / "there", sys_block) is expected
        link.unlink()
    loop = device(tmp_path / "devices", "dm-3", "LVM-z")
    (loop / "slaves" / "dm-3").symlink_to(loop)
    link.symlink_to(loop)
    assert on_encrypted_disk(tmp_path, sys_block) is None
