"""Who may log in by SCRAM: the image's users and tokens, and what strangers are told of those who are not there."""

import base64

import pytest
from tests.unit.security.sasl.support import exchange

from ottla.metadata.cluster_credentials import ClusterCredentials
from ottla.metadata.image import ClusterImage
from ottla.metadata.persistent import PMap
from ottla.metadata.records import DelegationTokenRecord, UserScramCredentialRecord
from ottla.metadata.scram import parse_credentials
from ottla.security.delegation_tokens import TokenHmacs
from ottla.security.sasl.mechanisms import SaslError
from ottla.security.sasl.scram import ScramSaslClient, ScramSaslServer
from ottla.security.scram_credentials import MECHANISMS, Mechanism

KEY = "a-secret-key"
NOW = 1_000
SHA_256 = MECHANISMS["SCRAM-SHA-256"]


def token(
    token_id: str, owner: str = "User:bob", expires_ms: int = 5_000, max_ms: int = 9_000
) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=owner,
        requester="User:admin",
        renewers=[],
        issue_timestamp=0,
        max_timestamp=max_ms,
        expiration_timestamp=expires_ms,
        token_id=token_id,
    )


def image(
    *tokens: DelegationTokenRecord, users: list[UserScramCredentialRecord] | None = None
) -> ClusterImage:
    return ClusterImage(
        scram=PMap.of({(user.mechanism, user.name): user for user in users or []}),
        delegation_tokens=PMap.of({each.token_id: each for each in tokens}),
    )


def credentials(
    *tokens: DelegationTokenRecord, key: str | None = KEY, cluster: str = "c"
) -> ClusterCredentials:
    users = parse_credentials(["SCRAM-SHA-256=[name=alice,password=secret]"])
    shown = image(*tokens, users=users)
    return ClusterCredentials(lambda: shown, lambda: cluster, lambda: NOW, key)


def server(users: ClusterCredentials, mechanism: Mechanism = SHA_256) -> ScramSaslServer:
    return ScramSaslServer(
        mechanism,
        lambda name: users.user(mechanism, name),
        lambda token_id: users.token(mechanism, token_id),
        unknown_secret=users.unknown_secret(),
        unknown_iterations=users.unknown_iterations(mechanism),
    )


def hmac_of(token_id: str) -> str:
    return base64.b64encode(TokenHmacs(KEY).hmac_of(token_id)).decode()


@pytest.mark.parametrize("mechanism", MECHANISMS.values())
def test_whoever_has_a_tokens_hmac_is_its_owner_until_it_expires(mechanism: Mechanism) -> None:
    users = credentials(token("id"))
    for _ in range(2):  # the second time by what was worked out
        one = server(users, mechanism)
        exchange(ScramSaslClient(mechanism, "id", hmac_of("id"), token_auth=True), one)
        assert (one.authorization_id, one.token_authenticated, one.expires_at_ms) == ("bob", True, 5_000)


def test_users_are_those_of_the_image() -> None:
    users = credentials()
    one = server(users)
    exchange(ScramSaslClient(SHA_256, "alice", "secret"), one)
    assert (one.authorization_id, one.token_authenticated, one.expires_at_ms) == ("alice", False, None)


@pytest.mark.parametrize(
    "found",
    [
        credentials(),
        credentials(token("id", expires_ms=NOW - 1)),
        credentials(token("id", max_ms=NOW - 1)),
        credentials(token("id", owner="Group:bob")),
        credentials(token("id", owner="bob")),
        credentials(token("id"), key=None),
        credentials(token("id"), key="another"),
    ],
    ids=["gone", "expired", "over", "no-user", "no-principal", "disabled", "another-key"],
)
def test_no_token_no_login(found: ClusterCredentials) -> None:
    with pytest.raises(SaslError):
        exchange(ScramSaslClient(SHA_256, "id", hmac_of("id"), token_auth=True), server(found))


def test_a_tokens_hmac_is_no_users_password() -> None:
    with pytest.raises(SaslError):
        exchange(ScramSaslClient(SHA_256, "id", hmac_of("id")), server(credentials(token("id"))))
    with pytest.raises(SaslError):
        exchange(
            ScramSaslClient(SHA_256, "alice", "secret", token_auth=True), server(credentials(token("id")))
        )


def salt(users: ClusterCredentials, name: str) -> bytes:
    return server(users).evaluate(f"n,,n={name},r=x".encode()).split(b",")[1]


def test_every_node_tells_the_same_of_a_user_that_there_is_not() -> None:
    assert salt(credentials(), "nobody") == salt(credentials(token("id")), "nobody")
    assert salt(credentials(), "nobody") != salt(credentials(), "someone")
    assert salt(credentials(), "nobody") != salt(credentials(cluster="d"), "nobody")
    assert salt(credentials(), "nobody") != salt(credentials(key=None), "nobody")


def test_who_knows_the_clusters_id_does_not_know_who_is_not_there() -> None:
    """Everybody is told the id; what is kept of the users nobody is. The salts of two lists of users differ."""
    alice = parse_credentials(["SCRAM-SHA-256=[name=alice,password=secret]"])

    def node(users: list[UserScramCredentialRecord]) -> ClusterCredentials:
        shown = image(users=users)
        return ClusterCredentials(lambda: shown, lambda: "c", lambda: NOW, None)

    first, same = node(alice), node(alice)
    second = node(parse_credentials(["SCRAM-SHA-256=[name=alice,password=other]"]))
    assert salt(first, "nobody") == salt(same, "nobody")
    assert salt(first, "nobody") != salt(second, "nobody")


def test_who_is_not_there_has_as_many_iterations_as_most_users() -> None:
    def asked(users: list[str], name: str) -> str:
        shown = image(users=parse_credentials(users))
        node = ClusterCredentials(lambda: shown, lambda: "c", lambda: NOW, KEY)
        return server(node).evaluate(f"n,,n={name},r=x".encode()).decode().split(",")[2]

    few, many = (f"SCRAM-SHA-256=[name={{}},password=x,iterations={count}]" for count in (4096, 8192))
    assert asked([], "nobody") == "i=4096"
    # Those of another mechanism do not count.
    others = ["SCRAM-SHA-512=[name=a,password=x,iterations=4096]"] * 3
    users = [few.format("a"), many.format("b"), many.format("c"), *others]
    assert asked(users, "nobody") == asked(users, "b") == "i=8192"
    assert asked(users[:2], "nobody") == "i=4096"


def test_the_key_is_not_shown() -> None:
    users = credentials(token("id"))
    found = users.token(SHA_256, "id")
    assert found is not None
    assert KEY not in f"{users!r} {found!r} {found.credential!r}"
