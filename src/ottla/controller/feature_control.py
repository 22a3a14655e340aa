"""Kafka's FeatureControlManager: UpdateFeatures: raising and lowering what the cluster agreed on (KIP-584, KIP-778).

Rules: pure; all updates of a request or none. kraft.version is the quorum's own and not in the metadata: the quorum has
said by then whether it would go up, and a NoOpRecord gives whoever asked for it an offset to wait for (KIP-853).

Also Kafka's ActivationRecordsGenerator: what a controller writes when it becomes active, the first records of a
cluster, or the end of what a predecessor left half done.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from ottla.controller.result import ControllerResult, RequestContext
from ottla.controller.rules import MIN_ISR, ClusterRules
from ottla.metadata import features
from ottla.metadata.features import DISABLED, SUPPORTED_FEATURES, VersionRange
from ottla.metadata.image import CLUSTER_DEFAULT, ClusterImage, ResourceType
from ottla.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
)
from ottla.metadata.snapshot import feature_level_of, metadata_version_of
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.admin import cluster as m


class UpgradeType(IntEnum):
    """How far down an update may go."""

    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class KRaftVersion(NamedTuple):
    """The quorum's version, and why the one that a request asks for cannot be, if it cannot."""

    level: int
    refusal: KafkaError | None = None


def update_features(
    rules: ClusterRules,
    request: m.UpdateFeaturesRequest,
    context: RequestContext,
    kraft_version: KRaftVersion,
) -> ControllerResult[m.UpdateFeaturesResponse]:
    """Sets levels of features."""
    try:
        records = _updates(rules, request.feature_updates, kraft_version)
    except KafkaError as error:
        message = (
            f"The update failed for all features since the following feature had an error: {error.message}"
        )
        return ControllerResult(m.UpdateFeaturesResponse(error_code=error.code, error_message=message))
    results = []
    if context.api_version <= 1:
        # Kafka sends the name of the code where there is no message to send.
        results = [
            m.UpdatableFeatureResult(feature=update.feature, error_code=0, error_message="NONE")
            for update in request.feature_updates
        ]
    result = ControllerResult(
        m.UpdateFeaturesResponse(error_message=None, results=results), records, atomic=True
    )
    return result.without_records() if request.validate_only else result


def _updates(
    rules: ClusterRules, updates: Sequence[m.FeatureUpdateKey], kraft_version: KRaftVersion
) -> list[MetadataRecord]:
    proposed = {**rules.image.features, **{u.feature: u.max_version_level for u in updates}}
    records: list[MetadataRecord] = []
    for update in updates:
        records += _update(rules, update, proposed, kraft_version)
    if any(
        u.feature == features.ELIGIBLE_LEADER_REPLICAS_VERSION and u.max_version_level > 0 for u in updates
    ):
        records = [*elr_safety_records(rules), *records]
    return records


def _update(
    rules: ClusterRules, update: m.FeatureUpdateKey, proposed: dict[str, int], kraft_version: KRaftVersion
) -> list[MetadataRecord]:
    name, level, kind = update.feature, update.max_version_level, update.upgrade_type
    current = kraft_version.level if name == features.KRAFT_VERSION else rules.image.features.get(name, 0)
    if kind not in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
        raise _invalid(name, level, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    reason = _not_supported(rules, name, level)
    if reason is not None:
        raise _invalid(name, level, reason)
    if level < current and kind == UpgradeType.UPGRADE:
        raise _invalid(
            name,
            level,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade.",
        )
    if level > current and kind != UpgradeType.UPGRADE:
        raise _invalid(name, level, "Can't downgrade to a newer version.")
    if name == features.METADATA_VERSION:
        _check_metadata_version(current, level, kind)
    elif name == features.KRAFT_VERSION:
        return _kraft_version(kraft_version, level, kind)
    elif name not in SUPPORTED_FEATURES:
        raise _invalid(name, level, f"Feature {name} not found.")
    else:
        unmet = features.unmet_dependency(name, level, proposed)
        if unmet is not None:
            raise _invalid(name, level, unmet)
    return [FeatureLevelRecord(name=name, feature_level=level)]


def _check_metadata_version(current: int, level: int, kind: int) -> None:
    if level >= current or not features.metadata_changed_between(current, level):
        return
    why = "Refusing to perform the requested downgrade because it might delete metadata information."
    if kind == UpgradeType.UNSAFE_DOWNGRADE:
        why = "Unsafe metadata downgrade is not supported in this version."
    raise KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Unsupported metadata.version downgrade from {current} to {level}. {why}",
    )


def _kraft_version(current: KRaftVersion, level: int, kind: int) -> list[MetadataRecord]:
    if kind == UpgradeType.UPGRADE:
        if current.refusal is not None:
            raise current.refusal
        return [NoOpRecord()]
    if level != current.level:
        raise _invalid(features.KRAFT_VERSION, level, "Can't downgrade the version of this feature.")
    return []


def kraft_version_upgrade(request: m.UpdateFeaturesRequest) -> int | None:
    """The kraft.version that a request wants to go up to."""
    for update in request.feature_updates:
        if update.feature == features.KRAFT_VERSION and update.upgrade_type == UpgradeType.UPGRADE:
            return update.max_version_level
    return None


def _not_supported(rules: ClusterRules, name: str, level: int) -> str | None:
    """The first node that could not run with the level, in Kafka's words."""
    local = SUPPORTED_FEATURES.get(name, DISABLED)
    if level not in local:
        return _reason(f"Local controller {rules.settings.node_id}", level, local)
    for broker in rules.image.brokers.values():
        offered = broker.supported_features.get(name, DISABLED)
        if level not in offered:
            return _reason(f"Broker {broker.id}", level, offered)
    for controller in rules.image.controllers.values():
        offered = controller.supported_features.get(name, DISABLED)
        if controller.id != rules.settings.node_id and level not in offered:
            return _reason(f"Controller {controller.id}", level, offered)
    if features.controller_registration_supported(rules.metadata_version):
        for voter in rules.settings.static.quorum_voters:
            if voter != rules.settings.node_id and voter not in rules.image.controllers:
                return f"controller {voter} has not registered, and may not support this feature"
    return None


def _reason(who: str, level: int, offered: VersionRange) -> str | None:
    if offered == DISABLED:
        return None if level == 0 else f"{who} does not support this feature."
    return f"{who} only supports versions {offered}"


def elr_safety_records(rules: ClusterRules) -> list[MetadataRecord]:
    """With eligible leader replicas the minimum ISR must be one and the same for all: the cluster's."""
    records: list[MetadataRecord] = []
    if MIN_ISR not in rules.image.config(*CLUSTER_DEFAULT):
        records.append(min_isr_record(str(rules.settings.static[MIN_ISR])))
    for resource, values in rules.image.configs.items():
        if resource.type == ResourceType.BROKER and resource.name and MIN_ISR in values:
            records.append(
                ConfigRecord(
                    resource_type=ResourceType.BROKER, resource_name=resource.name, name=MIN_ISR, value=None
                )
            )
    return records


def min_isr_record(value: str) -> ConfigRecord:
    """The minimum ISR of the whole cluster."""
    return ConfigRecord(
        resource_type=CLUSTER_DEFAULT.type, resource_name=CLUSTER_DEFAULT.name, name=MIN_ISR, value=value
    )


def _invalid(name: str, level: int, message: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {message}"
    )


def activation_records(
    image: ClusterImage,
    transaction_start_offset: int,
    bootstrap: Sequence[MetadataRecord],
    default_min_isr: int,
) -> list[MetadataRecord]:
    """The records to append before anything else."""
    records: list[MetadataRecord] = []
    if transaction_start_offset >= 0:
        records.append(AbortTransactionRecord(reason="Controller failover"))
    if image.metadata_version is not None:
        return records
    in_transaction = features.transactions_supported(metadata_version_of(bootstrap))
    if in_transaction:
        records.append(BeginTransactionRecord(name="Bootstrap records"))
    records += bootstrap
    if feature_level_of(bootstrap, features.ELIGIBLE_LEADER_REPLICAS_VERSION) > 0:
        records.append(min_isr_record(str(default_min_isr)))
    if in_transaction:
        records.append(EndTransactionRecord())
    return records
