"""AclPublisher: the authorizer has the rules of an image before anybody hears that the node has caught up with it."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from ottla.metadata.delta import Delta, ImageBuilder
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from ottla.model.errors import KafkaError
from ottla.model.ids import Uuid
from ottla.node import acl_publisher
from ottla.node.acl_publisher import RULES_AT_ONCE, AclPublisher
from ottla.security.acls import AclBinding, AclOperation, ResourceType
from ottla.security.authorizer import CustomAuthorizer, StandardAuthorizer
from ottla.security.principal import KafkaPrincipal

ALICE, ROOT = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "root")


def record(
    number: int, topic: str = "t", operation: AclOperation = AclOperation.READ
) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=Uuid(number.to_bytes(16, "big")),
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=operation,
        permission_type=3,
    )


def change(image: ClusterImage, offset: int, *records: Any) -> tuple[ClusterImage, Delta]:
    builder = ImageBuilder(image)
    for each in records:
        builder.apply(each)
    return builder.build(offset, 1, 0)


def may(authorizer: Any, topic: str = "t") -> bool:
    return bool(authorizer.authorize(ALICE, "h", AclOperation.READ, ResourceType.TOPIC, topic))


def unexpected(error: BaseException) -> None:
    raise AssertionError(error)


def test_until_the_first_image_only_super_users_are_judged() -> None:
    async def check() -> None:
        authorizer = StandardAuthorizer([ROOT], allow_everyone_if_no_acl_found=True)
        publisher = AclPublisher(authorizer, unexpected)
        assert authorizer.authorize(ROOT, "h", AclOperation.READ, ResourceType.TOPIC, "t")
        with pytest.raises(KafkaError):
            may(authorizer)
        waiting = asyncio.ensure_future(publisher.loaded())
        await asyncio.sleep(0)
        assert not waiting.done()
        publisher(*change(EMPTY_IMAGE, 3))
        await waiting
        assert may(authorizer)

    asyncio.run(check())


def test_a_small_change_counts_when_the_publisher_returns() -> None:
    async def check() -> None:
        authorizer = StandardAuthorizer()
        publisher = AclPublisher(authorizer, unexpected)
        image, delta = change(EMPTY_IMAGE, 0, record(1))
        publisher(image, delta)
        assert may(authorizer)
        await publisher.follow(delta)
        image, delta = change(image, 1, RemoveAccessControlEntryRecord(id=record(1).id))
        publisher(image, delta)
        assert not may(authorizer)

    asyncio.run(check())


def test_thousands_come_in_slices_and_in_the_order_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(acl_publisher.TimeSlice):
        """Gives the loop away at every chance."""

        is_over = True  # type: ignore[assignment]

    monkeypatch.setattr(acl_publisher, "TimeSlice", Impatient)

    async def check() -> None:
        authorizer = StandardAuthorizer()
        publisher = AclPublisher(authorizer, unexpected)
        image, delta = change(EMPTY_IMAGE, 0)
        publisher(image, delta)
        image, many = change(image, 1, *(record(i, f"t{i}") for i in range(1, 10 * RULES_AT_ONCE)))
        publisher(image, many)
        # Comes while the one before is not through: it must not overtake it.
        image, delta = change(image, 2, RemoveAccessControlEntryRecord(id=record(7).id), record(0))
        publisher(image, delta)
        assert not may(authorizer)
        turns = 0
        waiting = asyncio.ensure_future(publisher.follow(many))
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10
        assert may(authorizer, "t8")
        await publisher.follow(delta)
        assert may(authorizer)
        assert not may(authorizer, "t7")
        assert len(authorizer) == 10 * RULES_AT_ONCE - 1
        # And from then on at once again.
        image, delta = change(image, 3, RemoveAccessControlEntryRecord(id=record(0).id))
        publisher(image, delta)
        assert not may(authorizer)
        await publisher.stop()

    asyncio.run(check())


def test_a_stop_ends_what_is_under_way() -> None:
    async def check() -> None:
        closed = []

        class Closing(StandardAuthorizer):
            def close(self) -> None:
                closed.append(True)

        publisher = AclPublisher(Closing(), unexpected)
        publisher(*change(EMPTY_IMAGE, 1, *(record(i, f"t{i}") for i in range(2 * RULES_AT_ONCE))))
        await publisher.stop()
        assert closed == [True]

    asyncio.run(check())


@pytest.mark.parametrize("count", [1, 2 * RULES_AT_ONCE])
def test_an_authorizer_that_cannot_take_a_change_ends_the_node(count: int) -> None:
    class Stubborn:
        def authorize(self, *asked: Any) -> bool:
            return True

        def apply(self, added: Iterable[tuple[Uuid, AclBinding]], removed: Iterable[Uuid]) -> None:
            raise ValueError("no")

    async def check() -> None:
        failures: list[BaseException] = []
        publisher = AclPublisher(CustomAuthorizer(Stubborn()), failures.append)
        publisher(*change(EMPTY_IMAGE, 1, *(record(i, f"t{i}") for i in range(count))))
        while not failures:
            await asyncio.sleep(0)
        assert str(failures[0]) == "no"

    asyncio.run(check())


def test_an_authorizer_without_rules_is_given_none() -> None:
    class Open:
        def authorize(self, *asked: Any) -> bool:
            return True

    async def check() -> None:
        custom = CustomAuthorizer(Open())
        publisher = AclPublisher(custom, unexpected)
        assert not custom.decides_by_acls
        image, delta = change(EMPTY_IMAGE, 1, record(1))
        publisher(image, delta)
        await publisher.follow(delta)

    asyncio.run(check())
