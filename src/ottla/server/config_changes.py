"""What a resource's settings would be after an incremental change: for checking it before it is made."""

from collections.abc import Mapping

from ottla.config.definitions import BROKER_KEYS, Type
from ottla.config.values import to_text
from ottla.model.errors import ErrorCode, KafkaError
from ottla.server.broker_loggers import Operation
from ottla.wire.messages.configs import IncrementalAlterableConfig, IncrementalAlterConfigsResource


def incremental_settings(
    current: Mapping[str, str], resource: IncrementalAlterConfigsResource
) -> dict[str, str]:
    """The broker settings that `current` becomes."""
    settings = dict(current)
    for change in resource.configs:
        _apply(settings, change)
    return settings


def _apply(settings: dict[str, str], change: IncrementalAlterableConfig) -> None:
    if change.config_operation == Operation.DELETE:
        settings.pop(change.name, None)
    elif change.config_operation == Operation.SET:
        settings[change.name] = change.value or ""
    elif change.config_operation in (Operation.APPEND, Operation.SUBTRACT):
        settings[change.name] = _edited(settings, change)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.config_operation}")


def _edited(settings: Mapping[str, str], change: IncrementalAlterableConfig) -> str:
    key = BROKER_KEYS.get(change.name)
    if key is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {change.name}")
    verb = Operation(change.config_operation).name.lower()
    if key.type is not Type.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Config value {verb} is not allowed for config key: {change.name}"
        )
    old = [
        entry for entry in (settings.get(change.name) or to_text(key, key.default) or "").split(",") if entry
    ]
    given = (change.value or "").split(",")
    if change.config_operation == Operation.APPEND:
        return ",".join(old + [entry for entry in given if entry not in old])
    return ",".join(entry for entry in old if entry not in given)
