"""`ottla serve --check-security`: what is weak about a node, one line each, and what to do about it.

It looks at the configuration, at the files that it names and at the node's copy of the metadata log, and serves
nothing; the node may run meanwhile. What cannot be known here is said, and does not count. No finding has a secret in
it. Owned by the process that runs one command.
"""

from __future__ import annotations

import os
import stat
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.cli.args import EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.config.broker import BrokerConfig
    from ottla.config.listeners import Listener
    from ottla.config.settings import Settings
    from ottla.security.acls import AclBinding
    from ottla.security.tls.contexts import TlsSettings
    from ottla.security.tls.stores import StoreSettings

# A certificate that has less left is a finding.
EXPIRES_SOON_DAYS: Final = 30
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_AUTHORIZER: Final = "authorizer.class.name"
_SYS_BLOCK: Final = Path("/sys/dev/block")


class Finding(NamedTuple):
    """What is weak, and what to do; or what could not be found out."""

    what: str
    cure: str
    is_known: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.cure}" if self.is_known else f"cannot tell: {self.what}: {self.cure}"


def report(config: BrokerConfig, settings: Settings) -> int:
    """Print the findings; the exit status."""
    found = list(findings(config, settings))
    for finding in found:
        print(finding)
    weak = sum(finding.is_known for finding in found)
    if not weak:
        print("nothing weak was found", file=sys.stderr)
    return EXIT_FAILED if weak else 0


def findings(config: BrokerConfig, settings: Settings) -> Iterator[Finding]:
    """All of them, the gravest first."""
    for listener in config.listeners:
        yield from _of_listener(config, listener)
    yield from _of_rules(config)
    yield from _of_files(config, settings)
    yield from _of_certificates(config)
    yield from _of_disks(config)


# ---- listeners ------------------------------------------------------------------------------------------------


def _of_listener(config: BrokerConfig, listener: Listener) -> Iterator[Finding]:
    from ottla.security.channels import WITH_SASL, WITH_TLS

    protocol = listener.security_protocol
    has_tls, has_sasl = protocol in WITH_TLS, protocol in WITH_SASL
    where = f"listener {listener.name}"
    if not has_tls and listener.host not in _LOOPBACK:
        yield Finding(
            f"{where} has {protocol} and is reached from other machines ({listener.host or 'all addresses'})",
            "whoever is on the way reads all of it; give it SASL_SSL or SSL, or put it on 127.0.0.1",
        )
    if has_sasl and not has_tls and "PLAIN" in config.for_listener(listener.name, "sasl.enabled.mechanisms"):
        yield Finding(
            f"{where} has PLAIN without TLS",
            "passwords are sent as they are; use SASL_SSL, or a SCRAM mechanism",
        )
    if has_tls and not has_sasl and config.for_listener(listener.name, "ssl.client.auth") != "required":
        yield Finding(
            f"{where} has SSL without ssl.client.auth=required",
            "clients without a certificate are User:ANONYMOUS; set it, or use SASL_SSL",
        )
    if has_tls and config.for_listener(listener.name, "ssl.endpoint.identification.algorithm") == "":
        yield Finding(
            f"{where} has an empty ssl.endpoint.identification.algorithm",
            "nodes do not check whom they are connected to; take it out",
        )


# ---- access rules ---------------------------------------------------------------------------------------------


def _of_rules(config: BrokerConfig) -> Iterator[Finding]:
    has_authorizer = bool(config[_AUTHORIZER])
    try:
        rules = _rules_of(Path(config.metadata_log_dir))
    except Exception as error:  # noqa: BLE001 - a damaged log is for the node to say; here it is one thing not known
        yield Finding(
            "access rules", f"the metadata log cannot be read ({type(error).__name__})", is_known=False
        )
        rules = []
    if rules and not has_authorizer:
        yield Finding(
            f"there are {len(rules)} access rules and no {_AUTHORIZER}",
            "nobody is held to them; set it to org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        )
    elif not has_authorizer:
        yield Finding(
            f"there is no {_AUTHORIZER}",
            "whoever can connect may do everything; set it, and super.users",
        )
    # The authorizer's own, and no key of the broker's.
    open_to_all = config.originals.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true"
    if has_authorizer and open_to_all:
        yield Finding(
            "allow.everyone.if.no.acl.found is true",
            "everybody may use what no rule names, such as every new topic; take it out",
        )
    for rule in rules:
        if (cure := _wildcard_cure(rule)) is not None:
            yield Finding(f"a rule is too wide: {rule}", cure)


def _wildcard_cure(rule: AclBinding) -> str | None:
    from ottla.security.acls import WILDCARD, WILDCARD_PRINCIPAL, AclOperation, AclPermissionType, PatternType

    if rule.permission is not AclPermissionType.ALLOW:
        return None
    if rule.principal == WILDCARD_PRINCIPAL:
        return "everybody is meant, also who has not logged in; name users"
    is_all = rule.pattern_type is PatternType.LITERAL and rule.name == WILDCARD
    if is_all and rule.operation is AclOperation.ALL:
        return "it is everything on everything; name resources, or make it a super user"
    return None


def _rules_of(metadata_dir: Path) -> list[AclBinding]:
    """The rules in this node's copy of the metadata log."""
    from ottla.metadata.image import binding_of
    from ottla.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
    from ottla.raft.stored_records import stored_records

    rules: dict[object, AccessControlEntryRecord] = {}
    for record in stored_records(metadata_dir):
        if isinstance(record, AccessControlEntryRecord):
            rules[record.id] = record
        elif isinstance(record, RemoveAccessControlEntryRecord):
            rules.pop(record.id, None)
    return [binding_of(rule) for rule in rules.values()]


# ---- files ----------------------------------------------------------------------------------------------------


def _of_files(config: BrokerConfig, settings: Settings) -> Iterator[Finding]:
    """Files with keys and passwords that others on this machine may read, and passwords that anybody can."""
    from ottla.config.settings import base_key

    for name, setting in sorted(settings.by_key.items()):
        if setting.origin == "-X" and (key := base_key(name)) is not None and key.sensitive:
            yield Finding(
                f"{name} is given with -X", "everybody on this machine can read command lines; use a file"
            )
    for path, what in _secret_files(config, settings):
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            yield Finding(f"{path} ({what})", os.strerror(error.errno or 0), is_known=False)
            continue
        if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
            others = "everybody" if mode & (stat.S_IROTH | stat.S_IWOTH) else "its group"
            yield Finding(f"{path} ({what}) can be read or written by {others}", f"chmod 600 {path}")
    for path in dict.fromkeys([*config.log_dirs, config.metadata_log_dir]):
        if os.path.isdir(path) and os.stat(path).st_mode & stat.S_IRWXO:
            yield Finding(
                f"{path} (records, and what proves users' passwords) can be looked into by everybody",
                f"no access rule holds for files; chmod 700 {path}",
            )


def _secret_files(config: BrokerConfig, settings: Settings) -> Iterator[tuple[str, str]]:
    from ottla.config.settings import base_key

    seen: set[str] = set()
    for name, text in sorted(config.originals.items()):
        if name.endswith("ssl.keystore.location") and text not in seen:
            seen.add(text)
            yield text, name
    with_passwords: dict[str, str] = {}
    for name, setting in settings.by_key.items():
        key = base_key(name)
        file = setting.origin.rpartition(", line ")[0]
        if key is not None and key.sensitive and file:
            with_passwords.setdefault(file, name)
    yield from sorted(with_passwords.items())


# ---- certificates ---------------------------------------------------------------------------------------------


def _of_certificates(config: BrokerConfig) -> Iterator[Finding]:
    from ottla.config.errors import ConfigError
    from ottla.security.channels import WITH_TLS
    from ottla.security.tls.contexts import tls_settings

    seen: set[object] = set()
    for listener in config.listeners:
        if listener.security_protocol not in WITH_TLS:
            continue
        try:
            tls = tls_settings(partial(config.for_listener, listener.name))
            for store, certificate in _certificates(tls):
                if (store, certificate) not in seen:
                    seen.add((store, certificate))
                    yield from _of_certificate(store, certificate)
            yield from _of_trust(config, listener, tls)
        except ConfigError as error:
            yield Finding(f"listener {listener.name}: {error}", "the node does not start with it")


def _certificates(tls: TlsSettings) -> Iterator[tuple[str, bytes]]:
    from ottla.security.tls.stores import read_key_store, read_trust_store

    if tls.key_store.is_set:
        yield from ((_name_of(tls.key_store), each) for each in read_key_store(tls.key_store).chain)
    if tls.trust_store.is_set:
        yield from ((_name_of(tls.trust_store), each) for each in read_trust_store(tls.trust_store).trusted)


def _name_of(store: StoreSettings) -> str:
    return store.location or store.prefix


def _of_certificate(store: str, certificate: bytes) -> Iterator[Finding]:
    from ottla.security.tls.names import read_certificate

    found = read_certificate(certificate)
    left = (found.not_after - datetime.now(UTC)).days
    if left < 0:
        yield Finding(
            f"{store}: the certificate of {found.name} has expired", "ottla cert renew, or get a new one"
        )
    elif left < EXPIRES_SOON_DAYS:
        yield Finding(f"{store}: the certificate of {found.name} expires in {left} days", "renew it")


def _of_trust(config: BrokerConfig, listener: Listener, tls: TlsSettings) -> Iterator[Finding]:
    """Brokers that do not trust themselves do not trust one another; Apache Kafka does not start then."""
    if not config.is_broker or listener.name != config.inter_broker_listener_name:
        return
    from ottla.security.tls.contexts import load_key_material, trust_error

    material = load_key_material(tls)
    if tls.trust_store.is_set and (why := trust_error(material, material.trusted)) is not None:
        yield Finding(
            f"listener {listener.name}: the trust store does not vouch for the node's own certificate ({why})",
            "brokers of these stores cannot reach one another; put the authority's certificate into it",
        )


# ---- disks ----------------------------------------------------------------------------------------------------


def _of_disks(config: BrokerConfig) -> Iterator[Finding]:
    """Data is written as it is: who has the disk has the data, unless the disk is encrypted (dm-crypt)."""
    cure = "use dm-crypt (docs/security.md), or encryption.key of the clients"
    for path in dict.fromkeys([*config.log_dirs, config.metadata_log_dir]):
        is_encrypted = on_encrypted_disk(Path(path))
        if is_encrypted is None:
            yield Finding(f"whether the disk of {path} is encrypted", "see to it yourself", is_known=False)
        elif not is_encrypted:
            yield Finding(f"{path} is on a disk that is not encrypted", cure)


def on_encrypted_disk(path: Path, sys_block: Path = _SYS_BLOCK) -> bool | None:
    """Is every disk below this path dm-crypt's? None where that cannot be known."""
    existing = next((each for each in (path.absolute(), *path.absolute().parents) if each.exists()), None)
    if existing is None:
        return None
    device = os.stat(existing).st_dev
    node = sys_block / f"{os.major(device)}:{os.minor(device)}"
    # File systems without a device of their own (overlay, tmpfs, NFS, btrfs), and systems without /sys.
    return _is_encrypted(node) if node.exists() else None


def _is_encrypted(node: Path, depth: int = 0) -> bool | None:
    """Of a block device: by the id that dm-crypt gives, here or in all that it is made of."""
    if depth > 16:
        return None
    node = node.resolve()
    try:
        if (node / "dm" / "uuid").read_text().startswith("CRYPT-"):
            return True
    except OSError:
        pass  # not one of the device mapper's
    below = list((node / "slaves").iterdir()) if (node / "slaves").is_dir() else []
    if not below:
        return False
    answers = [_is_encrypted(each, depth + 1) for each in below]
    return None if None in answers else all(answers)
