"""String.hashCode of Java: which partition of a coordinator's topic, or which fetcher, a name belongs to."""

from functools import lru_cache

_MASK = 0xFFFFFFFF


# Groups commit again and again.
@lru_cache(maxsize=16_384)
def java_hash_code(text: str) -> int:
    """Over UTF-16 code units, as a signed 32-bit number."""
    code = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & _MASK
    return code - (1 << 32) if code > 0x7FFFFFFF else code
