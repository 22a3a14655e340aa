"""Subscriptions by regular expression: what is taken, when topics are looked for, what is written."""

import pytest
from tests.support.consumer_world import ConsumerWorld, refused

from ottla.coordinator.group.consumer.regex import SLICE_TOPICS, resolve
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.logs.offsets import ConsumerGroupRegularExpressionKey

TOPICS = {"red-1": 2, "red-2": 1, "blue-1": 1, "a-red-1": 1}


def world_of(*, background: bool = False) -> ConsumerWorld:
    return ConsumerWorld(TOPICS, background=background)


def test_the_whole_name_has_to_match() -> None:
    world = world_of()
    assert world.told(world.enter("a", None, regex="red.*")) == {}, "it is looked for first"
    world.pass_ms(0)
    assert world.told(world.beat("a")) == {"red-1": [0, 1], "red-2": [0]}


def test_it_is_looked_for_in_the_background_and_written() -> None:
    world = world_of(background=True)
    world.enter("a", None, regex="red.*")
    world.beat("a")
    assert len(world.background) == 1, "once, however often the member asks"
    assert world.has("a") == {}
    world.background.run()
    assert world.told(world.beat("a")) == {"red-1": [0, 1], "red-2": [0]}
    (written,) = [r.value for r in world.records() if type(r.key) is ConsumerGroupRegularExpressionKey]
    assert written is not None
    assert written.topics == ["red-1", "red-2"]
    assert written.version == 1


def test_who_brings_an_expression_that_is_known_is_assigned_at_once() -> None:
    world = world_of()
    world.enter("a", None, regex="red.*")
    world.pass_ms(0)
    world.settle_group()
    world.enter("b", None, regex="red.*")
    world.settle_group()
    held = [world.has("a"), world.has("b")]
    assert sorted(sum(len(p) for p in has.values()) for has in held) == [1, 2]


def test_names_and_expressions_together() -> None:
    world = world_of()
    world.enter("a", ["blue-1"], regex="red.*")
    world.pass_ms(0)
    world.settle_group()
    assert world.has("a").keys() == {"blue-1", "red-1", "red-2"}


def test_topics_that_are_created_are_found_but_not_within_ten_seconds() -> None:
    world = world_of()
    world.enter("a", None, regex="red.*")
    world.pass_ms(0)
    world.settle_group()
    world.set_topics({**TOPICS, "red-3": 1})
    world.beat("a")
    world.pass_ms(0)
    world.settle_group()
    assert "red-3" not in world.has("a")
    world.pass_ms(10_001)
    world.beat("a")
    world.pass_ms(0)
    world.settle_group()
    assert "red-3" in world.has("a")


def test_nothing_is_looked_for_while_nothing_has_changed() -> None:
    world = world_of(background=True)
    world.enter("a", None, regex="red.*")
    world.background.run()
    world.pass_ms(20_000)
    world.beat("a")
    assert len(world.background) == 0
    for _ in range(15):
        world.pass_ms(40_000)
        world.beat("a")
    assert len(world.background) == 1, "after ten minutes it is, whatever happened"


def test_an_expression_that_nobody_has_any_more_is_forgotten() -> None:
    world = world_of()
    world.enter("a", None, regex="red.*")
    world.enter("b", None, regex="blue.*")
    world.pass_ms(0)
    world.settle_group()
    world.beat("a", owned={}, subscribed_topic_regex="", subscribed_topic_names=["blue-1"])
    assert world.consumer_group().resolved_regexes.get("red.*") is None
    assert not world.consumer_group().is_subscribed_to("red-1")
    world.leave_group("b")
    assert world.consumer_group().resolved_regexes.get("blue.*") is None
    assert world.consumer_group().is_subscribed_to("blue-1"), "the other subscribes to it by name"


def test_what_is_found_for_a_group_that_is_gone_is_dropped() -> None:
    world = world_of(background=True)
    world.enter("a", None, regex="red.*")
    world.leave_group("a")
    written = world.log.log_end_offset
    world.background.run()
    assert world.log.log_end_offset == written


def test_it_is_looked_for_again_if_it_was_not_written() -> None:
    world = world_of(background=True)
    world.enter("a", None, regex="red.*")
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.background.run()
    world.log.refuse(None)
    world.beat("a")
    assert len(world.background) == 1
    world.background.run()
    assert world.told(world.beat("a")) == {"red-1": [0, 1], "red-2": [0]}


def test_what_was_resolved_for_a_closed_shard_is_not_written_by_the_next_one() -> None:
    world = world_of(background=True)
    world.enter("a", None, regex="red.*")
    world.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR))
    following = world.reloaded()
    end = following.log.log_end_offset
    world.background.decides_for(following)
    world.background.run()
    assert following.log.log_end_offset == end
    assert not len(following.consumer_group().resolved_regexes)


@pytest.mark.parametrize(
    "regex",
    ["(a", "[a", "*a", "a**", "a{1001}", "\\", "(?=a)", "(a)\\1", "\\C", "(?P<n>a)(?P<n>b)", "a++"],
)
def test_what_re2_does_not_take(regex: str) -> None:
    world = world_of()
    assert refused(world.enter_later("a", None, regex=regex)) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.log.log_end_offset == 0


@pytest.mark.parametrize(
    "regex",
    [
        "",
        ".*",
        "a|b",
        "(?i)A",
        "[[:alpha:]]+",
        "\\pL",
        "\\Q\\C\\E",
        "\\\\C",
        "ü",
        "\\Q" + "a?" * 3_000,
        "[a-zü]{100}",
    ],
)
def test_what_re2_takes(regex: str) -> None:
    assert world_of().enter("a", None, regex=regex).error_code == 0


@pytest.mark.parametrize(
    "regex",
    [
        "(?i)\\pL" * 200,
        "a{0,900}" * 20,
        "a?" * 3_000,
        "\\pL{100}",
        "((.{0,10}){0,10}){0,10}" * 50,
        "x" * 10 + ".*|" * 2_000,
        # An escaped backslash begins no quoted text.
        "\\\\Q" + "a?" * 3_000,
        "\\Qx\\E\\\\Q" + "(((a*)*)*)*" * 200,
        "[" + "".join(chr(number) for number in range(0x4E00, 0x5600, 2)) + "]{100}",
    ],
)
def test_what_would_take_too_long_to_compile(regex: str) -> None:
    world = world_of()
    assert refused(world.enter_later("a", None, regex=regex)) is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_long_list_of_names_does_not() -> None:
    regex = "|".join(f"topic-{number}" for number in range(2_000))
    assert world_of().enter("a", None, regex=regex).error_code == 0


def test_many_topics_are_matched_in_slices() -> None:
    names = [f"t-{number}" for number in range(SLICE_TOPICS * 3 + 1)]
    steps = list(resolve(["t-1.*", "none"], names))
    assert steps[:-1] == [None, None, None]
    found = steps[-1]
    assert found is not None
    assert found["none"] == frozenset()
    assert found["t-1.*"] == {name for name in names if name.startswith("t-1")}
