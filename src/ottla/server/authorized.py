"""The operations a client may do, as the bit fields that describe requests can ask for (KIP-430).

Without an authorizer everybody may do everything that makes sense for the resource.
"""

NOT_ASKED = -(2**31)

_CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = 5, 6, 7, 8, 9
_READ, _WRITE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 3, 4, 10, 11, 12


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


ALL_TOPIC_OPERATIONS = _bits(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
ALL_GROUP_OPERATIONS = _bits(_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
ALL_CLUSTER_OPERATIONS = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
