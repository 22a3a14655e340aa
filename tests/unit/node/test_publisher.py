"""Every committed change reaches the followers, whenever it comes."""

import asyncio

from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
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
