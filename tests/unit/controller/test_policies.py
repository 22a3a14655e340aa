"""The user's policies: what they are asked, and what becomes of what they raise."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.controller.support import settings

from ottla.config.errors import ConfigError
from ottla.controller.rules import ControllerSettings, Policies
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.policies import ConfigChange, NewTopic, PolicyViolation

TOPIC = NewTopic("t", 1, 1, None, {})
CHANGE = ConfigChange(2, "t", {"retention.ms": None})


class Strict:
    """Remembers its life; refuses what it is told to."""

    lives: list["Strict"] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.configs: Mapping[str, str] = {}
        self.closed = False
        Strict.lives.append(self)

    def configure(self, configs: Mapping[str, str]) -> None:
        self.configs = configs

    def validate(self, request: Any) -> None:
        raise PolicyViolation(f"not {type(request).__name__}")

    def close(self) -> None:
        self.closed = True


class Broken:
    def validate(self, request: Any) -> None:
        raise RuntimeError("a bug")

    def close(self) -> None:
        raise RuntimeError("another")


class Unwilling:
    def __init__(self) -> None:
        raise ValueError("not today")


class NoPolicy:
    pass


def _policies(create: str | None = None, alter: str | None = None) -> Policies:
    here = __name__
    values = {
        "create_topic_policy_class_name": create and f"{here}.{create}",
        "alter_config_policy_class_name": alter and f"{here}:{alter}",
    }
    return Policies.of(settings(**{key: value for key, value in values.items() if value}).static)


def test_a_policy_lives_with_the_controller() -> None:
    policies = _policies("Strict", "Strict")
    created, altered = Strict.lives[-2:]
    assert created.configs["node.id"] == "1"
    for ask, name in (
        (lambda: policies.check_new_topic(TOPIC), "NewTopic"),
        (lambda: policies.check_change(CHANGE), "ConfigChange"),
    ):
        with pytest.raises(KafkaError, match=name) as refused:
            ask()
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
    policies.close()
    assert created.closed
    assert altered.closed


def test_without_policies_nobody_objects() -> None:
    policies = _policies()
    policies.check_new_topic(TOPIC)
    policies.check_change(CHANGE)
    policies.close()


def test_a_policy_with_a_bug_does_not_stop_the_controller() -> None:
    policies = _policies("Broken")
    with pytest.raises(KafkaError) as refused:
        policies.check_new_topic(TOPIC)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    policies.close()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("org.example.JavaPolicy", "No module named 'org'"),
        ("nothing", "no module is named"),
        (f"{__name__}.Absent", "Absent"),
        (f"{__name__}.Unwilling", "not today"),
        (f"{__name__}.NoPolicy", "no method validate"),
    ],
)
def test_a_class_that_is_no_policy(path: str, message: str) -> None:
    config: ControllerSettings = settings(create_topic_policy_class_name=path)
    with pytest.raises(ConfigError) as refused:
        Policies.of(config.static)
    assert message in str(refused.value)
    assert refused.value.key == "create.topic.policy.class.name"
