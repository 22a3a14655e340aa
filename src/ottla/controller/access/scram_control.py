"""Kafka's ScramControlManager: users' SCRAM credentials (KIP-554).

Rules: pure. A user is changed at most once in a request: whoever is named twice is not changed at all. What arrives is
a password that its administrator has salted; what is kept can check a proof, but not make one.
"""

from ottla.controller.result import ITEMS_PER_STEP, OK, ApiError, ControllerResult, check_record_count
from ottla.controller.rules import ClusterRules
from ottla.metadata import features
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import MetadataRecord, RemoveUserScramCredentialRecord
from ottla.metadata.scram import credential_record
from ottla.model.errors import ErrorCode
from ottla.model.time_slice import Steps
from ottla.security.scram_credentials import MAX_ITERATIONS, MECHANISM_TYPES, MIN_ITERATIONS
from ottla.wire.messages.security import scram as m

# What is looked at in one step: half a millisecond.
CHANGES_PER_STEP = 500

Change = m.ScramCredentialDeletion | m.ScramCredentialUpsertion

_TWICE = ApiError(
    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
)
_UNSUPPORTED = ApiError(ErrorCode.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
# Kafka has no better word for a salted password of no bytes: its HMAC refuses an empty key.
_NO_PASSWORD = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)


def alter_user_scram_credentials(
    rules: ClusterRules, request: m.AlterUserScramCredentialsRequest
) -> Steps[ControllerResult[m.AlterUserScramCredentialsResponse]]:
    """Sets and deletes credentials; every user fares by itself."""
    errors: dict[str, ApiError] = {}
    changes = yield from _changes(rules, request, errors)
    records: list[MetadataRecord] = []
    results: list[m.AlterUserScramCredentialsResult] = []
    for count, change in enumerate(changes.values(), 1):
        if isinstance(change, m.ScramCredentialUpsertion) and not change.salted_password:
            errors[change.name] = _NO_PASSWORD
            continue
        records.append(_record(change))
        results.append(m.AlterUserScramCredentialsResult(user=change.name, error_message=None))
        if count % ITEMS_PER_STEP == 0:
            yield
    check_record_count(records)
    results += [
        m.AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)
        for user, error in errors.items()
    ]
    return ControllerResult(m.AlterUserScramCredentialsResponse(results=results), records, atomic=True)


def _changes(
    rules: ClusterRules, request: m.AlterUserScramCredentialsRequest, errors: dict[str, ApiError]
) -> Steps[dict[str, Change]]:
    """What becomes of each user, deletions first; of the others, why nothing does."""
    supported = features.scram_supported(rules.metadata_version)
    changes: dict[str, Change] = {}
    asked: list[Change] = [*request.deletions, *request.upsertions]
    for count, change in enumerate(asked):
        if count % CHANGES_PER_STEP == CHANGES_PER_STEP - 1:
            yield
        if change.name in errors:
            continue
        if changes.pop(change.name, None) is not None:
            errors[change.name] = _TWICE
            continue
        error = _error(rules.image, change) if supported else _UNSUPPORTED
        if error is OK:
            changes[change.name] = change
        else:
            errors[change.name] = error
    return changes


def _error(image: ClusterImage, change: Change) -> ApiError:
    if not change.name:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in MECHANISM_TYPES:
        return ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, m.ScramCredentialDeletion):
        if (change.mechanism, change.name) not in image.scram:
            return ApiError(
                ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
            )
    elif change.iterations < MIN_ITERATIONS:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif change.iterations > MAX_ITERATIONS:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return OK


def _record(change: Change) -> MetadataRecord:
    if isinstance(change, m.ScramCredentialDeletion):
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    mechanism = MECHANISM_TYPES[change.mechanism]
    return credential_record(mechanism, change.name, change.salted_password, change.salt, change.iterations)
