"""What Policies.java is for Apache Kafka: policies that write down what they are asked, and object in several ways."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.policies import ConfigChange, NewTopic, PolicyViolation


def write(line: str) -> None:
    with (Path(os.environ["OTTLA_TEST_POLICIES"]) / "ottla.asked").open("a") as log:
        log.write(line + "\n")


def java(value: object) -> str:
    """As Java prints null, lists and sorted maps."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={java(value[key])}" for key in sorted(value)) + "}"
    return str(value)


def object_to(word: str) -> None:
    if "refused" in word:
        raise PolicyViolation(f"the policy does not like {word}")
    if "config" in word:
        raise ConfigError("a configuration error")
    if "factor" in word:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "an error of Kafka's own")
    if "broken" in word:
        raise RuntimeError("a bug in the policy")


class Create:
    def configure(self, configs: Mapping[str, str]) -> None:
        write(f"configure create {configs.get('broker.rack')}")

    def validate(self, request: NewTopic) -> None:
        write("create " + " ".join(java(part) for part in request))
        object_to(request.topic)

    def close(self) -> None:
        write("close create")


class Alter:
    def configure(self, configs: Mapping[str, str]) -> None:
        write(f"configure alter {configs.get('broker.rack')}")

    def validate(self, request: ConfigChange) -> None:
        write("alter " + " ".join(java(part) for part in request))
        for value in request.configs.values():
            if value is not None:
                object_to(value)

    def close(self) -> None:
        write("close alter")
