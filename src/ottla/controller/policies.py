"""The user's policies: found by import path, told the node's settings, asked by decisions.

Where Kafka names a Java class, Ottla takes a Python one, as `package.module.Class` or `package.module:Class`. What a
policy may do is in ottla.model.policies. Owned by the controller; opened when a node is put together, closed with it.
"""

import logging
from importlib import import_module
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.policies import (
    AlterConfigPolicy,
    ConfigChange,
    CreateTopicPolicy,
    NewTopic,
    PolicyViolation,
)

logger = logging.getLogger(__name__)

CREATE_TOPIC_POLICY = "create.topic.policy.class.name"
ALTER_CONFIG_POLICY = "alter.config.policy.class.name"


class Policies:
    """Whoever else may object to a topic or a change."""

    def __init__(
        self, create_topic: CreateTopicPolicy | None = None, alter_config: AlterConfigPolicy | None = None
    ) -> None:
        self._create_topic = create_topic
        self._alter_config = alter_config

    @classmethod
    def of(cls, config: BrokerConfig) -> "Policies":
        """Those of a configuration; ConfigError is one line for the user."""
        return cls(_open(config, CREATE_TOPIC_POLICY), _open(config, ALTER_CONFIG_POLICY))

    def check_new_topic(self, topic: NewTopic) -> None:
        """KafkaError if the policy refuses."""
        if self._create_topic is not None:
            _ask(self._create_topic, topic)

    def check_change(self, change: ConfigChange) -> None:
        """KafkaError if the policy refuses."""
        if self._alter_config is not None:
            _ask(self._alter_config, change)

    def close(self) -> None:
        """Let the policies go; one that cannot close must not keep the node from stopping."""
        for policy in (self._create_topic, self._alter_config):
            close = getattr(policy, "close", None)
            try:
                if close is not None:
                    close()
            except Exception:
                logger.exception("closing %s failed", type(policy).__name__)


def _ask(policy: Any, request: NewTopic | ConfigChange) -> None:
    try:
        policy.validate(request)
    except PolicyViolation as violation:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, str(violation)) from None
    except KafkaError:
        raise
    except Exception as error:
        # Kafka has a word for this only where a configuration is what the policy was asked about.
        if isinstance(error, ConfigError) and isinstance(request, ConfigChange):
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        logger.exception("%s failed", type(policy).__name__)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from None


def _open(config: BrokerConfig, key: str) -> Any:
    path = config[key]
    if not path:
        return None
    try:
        policy = _find(path)()
        configure = getattr(policy, "configure", None)
        if configure is not None:
            configure(dict(config.originals))
    except Exception as error:
        raise ConfigError(
            f"{key}={path}: {error or type(error).__name__} (a Python class by its import path is expected, such "
            "as package.module.Class)",
            key,
        ) from error
    if not callable(getattr(policy, "validate", None)):
        raise ConfigError(f"{key}={path}: the class has no method validate", key)
    return policy


def _find(path: str) -> Any:
    module, separator, name = path.rpartition(":" if ":" in path else ".")
    if not separator:
        raise ImportError("no module is named")
    return getattr(import_module(module), name)
