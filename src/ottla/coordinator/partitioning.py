"""Which partition of a coordinator's topic a key belongs to: by Java's String.hashCode, as on every Kafka node."""

from functools import lru_cache

_MASK = 0xFFFFFFFF
_MIN_INT = -(1 << 31)


# Groups commit again and again.
@lru_cache(maxsize=16_384)
def java_hash_code(text: str) -> int:
    """String.hashCode: over UTF-16 code units, as a signed 32-bit number."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & _MASK
    return code - (1 << 32) if code > 0x7FFFFFFF else code


def partition_for(key: str, partitions: int) -> int:
    """The partition of a group or transactional id."""
    code = java_hash_code(key)
    return (0 if code == _MIN_INT else abs(code)) % partitions
