"""Every committed change reaches the followers, whenever it comes."""

import asyncio

import pytest

from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import KafkaError
from ottla.node.publisher import Publisher


def change(offset: int) -> tuple[ClusterImage, Delta]:
    after = ClusterImage(offset=offset)
    return after, Delta(ClusterImage(offset=offset - 1), after, producer_ids=True)


async def publish_when_just_done() -> list[int]:
    seen: list[int] = []

    async def follow(delta: Delta) -> None:
        seen.append(delta.after.offset)

    publisher = Publisher(lambda error: None)
    publisher.follow(follow)
    publisher.begin()
    publisher.publish(*change(1))
    while not seen:
        await asyncio.sleep(0)
    # The first is applied, and nobody has heard yet that there is nothing more to do.
    publisher.publish(*change(2))
    await asyncio.wait_for(publisher.reached(2), 20)
    return seen


def test_a_change_that_comes_when_the_last_one_is_just_applied_is_not_left_lying() -> None:
    assert asyncio.run(publish_when_just_done()) == [1, 2]


def test_a_follower_that_fails_leaves_nobody_waiting() -> None:
    """A start waits for the image too: it must end with the reason rather than never."""

    async def main() -> None:
        async def follow(delta: Delta) -> None:
            raise RuntimeError("a bug")

        failures: list[BaseException] = []
        publisher = Publisher(failures.append)
        publisher.follow(follow)
        publisher.publish(*change(1))
        waiting = asyncio.ensure_future(publisher.reached(1))
        publisher.begin()
        with pytest.raises(KafkaError):
            await asyncio.wait_for(waiting, 20)
        assert [str(error) for error in failures] == ["a bug"]
        publisher.publish(*change(2))
        with pytest.raises(KafkaError):
            await asyncio.wait_for(publisher.reached(2), 20)
        assert publisher.image.offset < 1, "an image that was not applied is not shown"

    asyncio.run(main())
