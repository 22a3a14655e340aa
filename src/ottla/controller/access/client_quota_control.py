"""Kafka's ClientQuotaControlManager: what users, client ids and addresses may use of a broker (KIP-546).

Rules: pure; whether a host has an address is found out before, by whoever may wait for that. Every entity of a request
fares by itself: one that is answered with an error is not changed. Kafka takes a quota that is no number (NaN), or
infinite, and changes an entity that is named twice by what is said of it first; here these are refused.
"""

from collections.abc import Collection, Mapping
from math import isfinite
from typing import Final, NamedTuple

from ottla.controller.result import ITEMS_PER_STEP, OK, ApiError, ControllerResult, check_record_count
from ottla.controller.rules import ClusterRules
from ottla.metadata.image import QuotaEntity
from ottla.metadata.records import ClientQuotaRecord, MetadataRecord
from ottla.metadata.records import EntityData as RecordEntity
from ottla.model.errors import ErrorCode
from ottla.model.time_slice import Steps
from ottla.security.principal import is_address
from ottla.wire.messages.admin import quotas as m

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"


class QuotaKey(NamedTuple):
    """What a quota's value may be: a whole number up to `max_value`, of a type by Kafka's name; or any above zero."""

    type_name: str | None = None
    max_value: float = 0.0


_LONG = QuotaKey("a LONG", float(2**63 - 1))
USER_AND_CLIENT_KEYS: Final = {
    "producer_byte_rate": _LONG,
    "consumer_byte_rate": _LONG,
    "request_percentage": QuotaKey(),
    "controller_mutation_rate": QuotaKey(),
}
IP_KEYS: Final = {"connection_creation_rate": QuotaKey("an INT", float(2**31 - 1))}
# Whose fraction is smaller counts as whole.
_FRACTION = 1e-6

Entity = dict[str, str | None]


def alter_client_quotas(
    rules: ClusterRules, request: m.AlterClientQuotasRequest, known_hosts: Collection[str] = ()
) -> Steps[ControllerResult[m.AlterClientQuotasResponse]]:
    """Sets and removes quotas; `known_hosts` are those of host_names() that have an address."""
    errors: dict[QuotaEntity, ApiError] = {}
    changed: dict[QuotaEntity, list[MetadataRecord]] = {}
    for count, entry in enumerate(request.entries, 1):
        entity = _entity(entry)
        key = _key(entity)
        if key in errors:
            errors[key] = _invalid(f"Ignoring duplicate entity {_name(entity)}")
            changed.pop(key, None)
        else:
            errors[key] = _entity_error(entity, known_hosts)
            if errors[key] is OK:
                records, errors[key] = _records(rules, key, entity, entry.ops)
                if errors[key] is OK:
                    changed[key] = records
        if count % ITEMS_PER_STEP == 0:
            yield
    records = [record for each in changed.values() for record in each]
    check_record_count(records)
    entries = [
        m.AlterClientQuotasResponseEntryData(
            error_code=error.code,
            error_message=error.message,
            entity=[m.EntityData(entity_type=kind, entity_name=name) for kind, name in key],
        )
        for key, error in errors.items()
    ]
    result = ControllerResult(m.AlterClientQuotasResponse(entries=entries), records, atomic=True)
    return result.without_records() if request.validate_only else result


def host_names(request: m.AlterClientQuotasRequest) -> list[str]:
    """The ip entities that are no addresses: hosts, which may have one."""
    named = (_entity(entry).get(IP) for entry in request.entries)
    return [name for name in dict.fromkeys(named) if name and not is_address(name)]


def _entity(entry: m.AlterClientQuotasRequestEntryData) -> Entity:
    return {part.entity_type: part.entity_name for part in entry.entity}


def _key(entity: Entity) -> QuotaEntity:
    """As the image has it."""
    return tuple(sorted(entity.items(), key=lambda part: part[0]))


def _entity_error(entity: Entity, known_hosts: Collection[str]) -> ApiError:
    if not entity:
        return _invalid("Invalid empty client quota entity")
    for kind, name in entity.items():
        if kind not in (USER, CLIENT_ID, IP):
            return _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            return _invalid(f"Empty {kind} not supported")
    if IP in entity:
        if len(entity) > 1:
            return _invalid(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        address = entity[IP]
        if address is not None and not is_address(address) and address not in known_hosts:
            return _invalid(f"{address} is not a valid IP or resolvable host.")
    return OK


def _records(
    rules: ClusterRules, key: QuotaEntity, entity: Entity, ops: list[m.OpData]
) -> tuple[list[MetadataRecord], ApiError]:
    """What changes for one entity, or why nothing does."""
    keys = IP_KEYS if IP in entity else USER_AND_CLIENT_KEYS
    current = rules.image.client_quotas.get(key, _NOTHING)
    records: list[MetadataRecord] = []
    seen: set[str] = set()
    for op in ops:
        if op.key in seen:
            return [], _invalid(
                f"Duplicate quota key {op.key} not updating quota for this entity {_name(entity)}"
            )
        seen.add(op.key)
        if op.remove:
            if op.key in current:
                records.append(_record(key, op.key, 0.0, remove=True))
            continue
        error = _value_error(keys.get(op.key), op.key, op.value)
        if error is not OK:
            return [], error
        if current.get(op.key) != op.value:
            records.append(_record(key, op.key, op.value, remove=False))
    return records, OK


_NOTHING: Mapping[str, float] = {}


def _value_error(known: QuotaKey | None, key: str, value: float) -> ApiError:
    if known is None:
        return _invalid(f"Invalid configuration key {key}")
    if not isfinite(value):
        return _invalid(f"Quota {key} must be a finite number")
    if value <= 0.0:
        return _invalid(f"Quota {key} must be greater than 0")
    if known.type_name is not None:
        if value > known.max_value:
            return _invalid(f"Proposed value for {key} is too large for {known.type_name}.")
        if value % 1.0 > _FRACTION:
            return _invalid(f"{key} cannot be a fractional value.")
    return OK


def _record(entity: QuotaEntity, key: str, value: float, *, remove: bool) -> ClientQuotaRecord:
    parts = [RecordEntity(entity_type=kind, entity_name=name) for kind, name in entity]
    return ClientQuotaRecord(entity=parts, key=key, value=value, remove=remove)


def _name(entity: Entity) -> str:
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity.items())
    return f"ClientQuotaEntity(entries={{{parts}}})"


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
