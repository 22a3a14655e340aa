"""Static members: away for a while, replaced, fenced."""

from tests.support.consumer_world import ConsumerWorld, refused

from ottla.model.errors import ErrorCode


def static_pair() -> ConsumerWorld:
    world = ConsumerWorld({"t": 4})
    world.enter("a", ["t"], instance="one")
    world.enter("b", ["t"], instance="two")
    world.settle_group()
    return world


def test_an_instance_that_is_there_cannot_be_taken() -> None:
    world = static_pair()
    assert refused(world.enter_later("c", ["t"], instance="one")) is ErrorCode.UNRELEASED_INSTANCE_ID


def test_who_is_away_keeps_its_partitions_and_finds_them_again_under_another_id() -> None:
    world = static_pair()
    had = world.has("a")
    answer = world.beat("a", epoch=-2, instance_id="one")
    assert answer.member_epoch == -2
    world.beat("b", owned=world.has("b"), instance_id="two")
    assert world.has("b") != {"t": [0, 1, 2, 3]}
    answer = world.enter("c", ["t"], instance="one")
    assert world.told(answer) == had
    assert "a" not in world.consumer_group().members
    assert world.consumer_group().static_members.get("one") == "c"


def test_coming_back_is_no_rebalance() -> None:
    world = static_pair()
    epoch = world.consumer_group().epoch
    world.beat("a", epoch=-2, instance_id="one")
    world.enter("c", ["t"], instance="one")
    assert world.consumer_group().epoch == epoch
    assert world.consumer_group().state_name() == "Stable"


def test_coming_back_with_another_subscription_is_one() -> None:
    world = static_pair()
    epoch = world.consumer_group().epoch
    world.beat("a", epoch=-2, instance_id="one")
    world.enter("c", ["u"], instance="one")
    assert world.consumer_group().epoch == epoch + 1
    world.beat("c", owned={}, instance_id="one")
    world.beat("b", owned=world.has("b"), instance_id="two")
    world.beat("b", owned=world.has("b"), instance_id="two")
    assert world.has("b") == {"t": [0, 1, 2, 3]}


def test_who_is_away_too_long_is_gone() -> None:
    world = static_pair()
    world.pass_ms(30_000)
    world.beat("b", instance_id="two")
    world.beat("a", epoch=-2, instance_id="one")
    world.pass_ms(20_000)
    assert "a" not in world.consumer_group().members
    world.settle_group()
    assert world.has("b") == {"t": [0, 1, 2, 3]}


def test_the_one_before_is_fenced() -> None:
    world = static_pair()
    epoch = world.member("a").member_epoch
    world.beat("a", epoch=-2, instance_id="one")
    world.enter("c", ["t"], instance="one")
    late = world.beat_later("a", epoch=epoch, instance_id="one")
    assert refused(late) is ErrorCode.FENCED_INSTANCE_ID
    assert refused(world.beat_later("a", epoch=-1, instance_id="one")) is ErrorCode.FENCED_INSTANCE_ID
    assert refused(world.beat_later("a", epoch=-2, instance_id="one")) is ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_that_nobody_is() -> None:
    world = static_pair()
    assert refused(world.beat_later("x", epoch=3, instance_id="three")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(world.beat_later("x", epoch=-1, instance_id="three")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_was_away_and_beats_again_is_fenced() -> None:
    world = static_pair()
    epoch = world.member("a").member_epoch
    world.beat("a", epoch=-2, instance_id="one")
    assert refused(world.beat_later("a", epoch=epoch, instance_id="one")) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_static_member_leaves_for_good() -> None:
    world = static_pair()
    world.beat("a", epoch=-1, instance_id="one")
    assert world.consumer_group().static_members.get("one") is None
    assert world.enter("c", ["t"], instance="one").error_code == 0
