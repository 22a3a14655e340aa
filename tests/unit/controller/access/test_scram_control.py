"""SCRAM credentials: who may be changed, what is kept, and what is refused as Kafka refuses it."""

import pytest
from tests.unit.controller.support import Cluster

from ottla.controller.access.scram_control import alter_user_scram_credentials
from ottla.metadata import records as r
from ottla.model.errors import ErrorCode
from ottla.model.time_slice import run_to_end
from ottla.security.scram_credentials import MECHANISMS, salted_password, server_key, stored_key
from ottla.wire.messages.security import scram as m

SHA_256, SHA_512 = 1, 2
Change = m.ScramCredentialDeletion | m.ScramCredentialUpsertion


def delete(name: str, mechanism: int = SHA_256) -> m.ScramCredentialDeletion:
    return m.ScramCredentialDeletion(name=name, mechanism=mechanism)


def upsert(
    name: str, mechanism: int = SHA_256, iterations: int = 4096, salted: bytes = b"salted"
) -> m.ScramCredentialUpsertion:
    return m.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=salted
    )


def alter(cluster: Cluster, *changes: Change) -> dict[str, int]:
    request = m.AlterUserScramCredentialsRequest(
        deletions=[c for c in changes if isinstance(c, m.ScramCredentialDeletion)],
        upsertions=[c for c in changes if isinstance(c, m.ScramCredentialUpsertion)],
    )
    result = run_to_end(alter_user_scram_credentials(cluster.rules, request))
    assert result.atomic
    cluster.take(result)
    assert len(result.response.results) == len({answer.user for answer in result.response.results})
    return {answer.user: answer.error_code for answer in result.response.results}


def users(cluster: Cluster) -> set[tuple[int, str]]:
    return set(cluster.image.scram)


def test_a_credential_is_kept_as_what_checks_a_proof() -> None:
    cluster = Cluster(1)
    sha_256 = MECHANISMS["SCRAM-SHA-256"]
    salted = salted_password(sha_256, "pencil", b"salt", 8192)
    assert alter(cluster, upsert("alice", iterations=8192, salted=salted)) == {"alice": 0}
    assert cluster.image.scram[SHA_256, "alice"] == r.UserScramCredentialRecord(
        name="alice",
        mechanism=SHA_256,
        salt=b"salt",
        stored_key=stored_key(sha_256, salted),
        server_key=server_key(sha_256, salted),
        iterations=8192,
    )


def test_credentials_come_change_and_go() -> None:
    cluster = Cluster(1)
    assert alter(cluster, upsert("alice"), upsert("bob", SHA_512, 16384)) == {"alice": 0, "bob": 0}
    assert alter(cluster, upsert("alice", SHA_512)) == {"alice": 0}
    assert users(cluster) == {(SHA_256, "alice"), (SHA_512, "alice"), (SHA_512, "bob")}
    assert alter(cluster, delete("alice"), upsert("bob", SHA_512, 5000)) == {"alice": 0, "bob": 0}
    assert users(cluster) == {(SHA_512, "alice"), (SHA_512, "bob")}
    assert cluster.image.scram[SHA_512, "bob"].iterations == 5000


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([upsert("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([delete("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert("", mechanism=9)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert("x", mechanism=0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([upsert("x", mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([delete("alice", mechanism=-1)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([upsert("x", iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert("x", iterations=1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert("x", iterations=-(2**31))], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert("x", iterations=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert("x", iterations=10**6)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([upsert("x", salted=b"")], ErrorCode.UNKNOWN_SERVER_ERROR),
        ([delete("x")], ErrorCode.RESOURCE_NOT_FOUND),
        ([delete("alice", SHA_512)], ErrorCode.RESOURCE_NOT_FOUND),
        ([upsert("x"), upsert("x", SHA_512)], ErrorCode.DUPLICATE_RESOURCE),
        ([upsert("x", salted=b""), upsert("x", SHA_512)], ErrorCode.DUPLICATE_RESOURCE),
        ([upsert("x")] * 3, ErrorCode.DUPLICATE_RESOURCE),
        ([delete("alice"), delete("alice", SHA_512)], ErrorCode.DUPLICATE_RESOURCE),
        ([delete("alice"), upsert("alice")], ErrorCode.DUPLICATE_RESOURCE),
        # What was wrong first is said.
        ([delete("x"), upsert("x")], ErrorCode.RESOURCE_NOT_FOUND),
        ([upsert("x", iterations=1), upsert("x")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(changes: list[Change], code: ErrorCode) -> None:
    cluster = Cluster(1)
    alter(cluster, upsert("alice"))
    before = cluster.image
    assert set(alter(cluster, *changes).values()) == {code}
    assert cluster.image is before


def test_each_user_fares_by_itself() -> None:
    cluster = Cluster(1)
    assert alter(cluster, upsert("a"), upsert("b", iterations=1), delete("c"), upsert("d"), upsert("d")) == {
        "a": 0,
        "b": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "c": ErrorCode.RESOURCE_NOT_FOUND,
        "d": ErrorCode.DUPLICATE_RESOURCE,
    }
    assert users(cluster) == {(SHA_256, "a")}


def test_an_old_metadata_version_knows_no_scram() -> None:
    cluster = Cluster(1, elr=False)
    cluster.apply(r.FeatureLevelRecord(name="metadata.version", feature_level=10))
    assert alter(cluster, upsert("a"), delete("b")) == dict.fromkeys("ab", ErrorCode.UNSUPPORTED_VERSION)
    cluster.apply(r.FeatureLevelRecord(name="metadata.version", feature_level=11))
    assert alter(cluster, upsert("a")) == {"a": 0}


def test_thousands_are_decided_in_steps() -> None:
    cluster = Cluster(1)
    request = m.AlterUserScramCredentialsRequest(
        deletions=[], upsertions=[upsert(f"user-{n}") for n in range(1_000)]
    )
    steps = alter_user_scram_credentials(cluster.rules, request)
    assert sum(1 for _ in steps) > 20


def test_nothing_asked_is_nothing_answered() -> None:
    assert alter(Cluster(1)) == {}


@pytest.mark.parametrize("secret", ["pencil-proof"])
def test_no_secret_is_in_a_repr(secret: str) -> None:
    change = upsert("alice", salted=secret.encode())
    request = m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[change])
    cluster = Cluster(1)
    alter(cluster, change)
    kept = cluster.image.scram[SHA_256, "alice"]
    for shown in (repr(request), repr(kept)):
        assert secret not in shown
        assert repr(kept.stored_key) not in shown
        assert repr(kept.server_key) not in shown
        assert "alice" in shown
