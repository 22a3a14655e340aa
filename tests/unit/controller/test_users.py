"""A whole controller and its users: what it decides is in the log, and what has expired goes by itself."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.unit.controller.support import settings
from tests.unit.raft.support import LISTENERS, driver, format_directory

from ottla.controller.controller import MAX_RESOLVED_HOSTS, Controller
from ottla.controller.result import RequestContext
from ottla.metadata.image import ClusterImage
from ottla.metadata.loader import MetadataPublisher
from ottla.model.errors import ErrorCode
from ottla.raft.image_loader import ImageLoader
from ottla.security.principal import KafkaPrincipal
from ottla.wire.messages.admin import quotas
from ottla.wire.messages.security import scram, tokens

ALICE = RequestContext(3, principal=KafkaPrincipal("User", "alice"))
HOUR = 3_600_000
Work = Callable[[Controller], Awaitable[None]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    format_directory(tmp_path)
    return tmp_path


def run(
    directory: Path,
    work: Work,
    clock: ManualClock | None = None,
    has_address: Callable[[str], Awaitable[bool]] | None = None,
    **values: object,
) -> ClusterImage:
    clock = clock or ManualClock(1_000_000)

    async def main() -> ClusterImage:
        raft = driver(directory, clock, None)
        loader = ImageLoader(
            raft,
            MetadataPublisher(),
            directory=directory / "__cluster_metadata-0",
            on_failure=lambda error: None,
        )
        controller = Controller(
            raft,
            loader,
            settings(log_dirs=str(directory), **values),
            clock,
            metadata_dir=directory,
            listeners=LISTENERS,
            has_address=has_address,
        )
        try:
            controller.raft.load()
            await controller.start()
            await work(controller)
        finally:
            await controller.stop()
        return controller.image

    return asyncio.run(main())


async def nothing(controller: Controller) -> None:
    assert controller.active


def test_a_user_outlives_its_controller(directory: Path) -> None:
    async def add(controller: Controller) -> None:
        change = scram.ScramCredentialUpsertion(
            name="alice", mechanism=2, iterations=4096, salt=b"salt", salted_password=b"salted"
        )
        request = scram.AlterUserScramCredentialsRequest(deletions=[], upsertions=[change])
        answer = await controller.alter_user_scram_credentials(request, ALICE)
        assert [(result.user, result.error_code) for result in answer.results] == [("alice", 0)]

    made = run(directory, add)
    assert set(made.scram) == {(2, "alice")}
    assert run(directory, nothing).scram == made.scram


def quota_of(*hosts: str) -> quotas.AlterClientQuotasRequest:
    op = quotas.OpData(key="connection_creation_rate", value=5.0, remove=False)
    return quotas.AlterClientQuotasRequest(
        entries=[
            quotas.AlterClientQuotasRequestEntryData(
                entity=[quotas.EntityData(entity_type="ip", entity_name=host)], ops=[op]
            )
            for host in hosts
        ],
        validate_only=False,
    )


def test_a_host_has_to_have_an_address(directory: Path) -> None:
    asked: list[str] = []

    async def has_address(host: str) -> bool:
        asked.append(host)
        return host == "here.example"

    async def alter(controller: Controller) -> None:
        answer = await controller.alter_client_quotas(
            quota_of("10.0.0.1", "here.example", "nowhere.example"), ALICE
        )
        assert [entry.error_code for entry in answer.entries] == [0, 0, ErrorCode.INVALID_REQUEST]
        assert asked == ["here.example", "nowhere.example"]
        # Nobody keeps the resolver busy.
        many = [f"h{n}.example" for n in range(MAX_RESOLVED_HOSTS + 50)]
        await controller.alter_client_quotas(quota_of(*many), ALICE)
        assert len(asked) == 2 + MAX_RESOLVED_HOSTS

    image = run(directory, alter, has_address=has_address)
    assert set(image.client_quotas) == {(("ip", "10.0.0.1"),), (("ip", "here.example"),)}
    assert run(directory, nothing).client_quotas == image.client_quotas


def test_a_resolver_that_does_not_answer_is_not_waited_for(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def has_address(host: str) -> bool:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def alter(controller: Controller) -> None:
        answer = await controller.alter_client_quotas(quota_of("slow.example", "10.0.0.1"), ALICE)
        assert [entry.error_code for entry in answer.entries] == [ErrorCode.INVALID_REQUEST, 0]

    monkeypatch.setattr("ottla.controller.controller.RESOLVE_TIMEOUT_S", 0.01)
    run(directory, alter, has_address=has_address)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("[::1]", True),
        ("127.1", True),
        ("localhost", True),
        ("a" * 70, False),
        ("a\0b", False),
        ("a b", False),
        ("é" * 60, False),
    ],
)
def test_the_systems_resolver(directory: Path, host: str, known: bool) -> None:
    async def alter(controller: Controller) -> None:
        answer = await controller.alter_client_quotas(quota_of(host), ALICE)
        assert answer.entries[0].error_code == (0 if known else ErrorCode.INVALID_REQUEST)

    run(directory, alter)


def test_tokens_last_their_time(directory: Path) -> None:
    clock = ManualClock(1_000_000)

    async def use(controller: Controller) -> None:
        request = tokens.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
        made = await controller.create_delegation_token(request, ALICE)
        short = await controller.create_delegation_token(
            tokens.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=HOUR // 2), ALICE
        )
        assert (made.error_code, short.error_code) == (0, 0)
        assert made.token_id != short.token_id
        clock.advance(HOUR // 4)
        await controller.tick()
        assert len(controller.image.delegation_tokens) == 2
        clock.advance(HOUR)
        await controller.tick()
        assert list(controller.image.delegation_tokens) == [made.token_id]
        renewing = tokens.RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=5)
        renewed = await controller.renew_delegation_token(renewing, ALICE)
        assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, clock.now_ms() + 5)
        ending = tokens.ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1)
        ended = await controller.expire_delegation_token(ending, ALICE)
        assert ended.error_code == 0
        assert len(controller.image.delegation_tokens) == 0

    run(directory, use, clock, delegation_token_secret_key="key")


def test_without_a_key_there_are_no_tokens(directory: Path) -> None:
    async def ask(controller: Controller) -> None:
        made = await controller.create_delegation_token(
            tokens.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), ALICE
        )
        renewed = await controller.renew_delegation_token(
            tokens.RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=5), ALICE
        )
        ended = await controller.expire_delegation_token(
            tokens.ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1), ALICE
        )
        codes = {made.error_code, renewed.error_code, ended.error_code}
        assert codes == {ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED}

    run(directory, ask)
