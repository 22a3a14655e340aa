"""The Python twin of the compiled OffsetMap: for each key that the cleaner met, the newest offset it has."""

import hashlib

from ottla.records._kernel_py import _walk, _wrap64
from ottla.records.types import Buffer

ENTRY_BYTES = 24
SECRET_BYTES = 16


class OffsetMap:
    """Keys are kept as 16-byte digests under a secret, so that nobody can make two keys collide."""

    __slots__ = ("_offsets", "_secret", "slots")

    def __init__(self, memory_bytes: int, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret must have {SECRET_BYTES} bytes")
        if memory_bytes < ENTRY_BYTES:
            raise ValueError(f"an offset map needs at least {ENTRY_BYTES} bytes")
        self.slots = memory_bytes // ENTRY_BYTES
        self._secret = bytes(secret)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def _digest(self, key: Buffer) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self._secret).digest()

    def put(self, key: Buffer, offset: int, /) -> bool:
        if offset < 0:
            raise ValueError("an offset is not negative")
        digest = self._digest(key)
        known = self._offsets.get(digest)
        if known is None and len(self._offsets) >= self.slots:
            return False
        self._offsets[digest] = offset if known is None else max(known, offset)
        return True

    def get(self, key: Buffer, /) -> int:
        return self._offsets.get(self._digest(key), -1)

    def clear(self) -> None:
        self._offsets.clear()

    def put_records(
        self,
        buf: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        start_offset: int,
        max_entries: int,
        /,
    ) -> int:
        limit = min(max_entries, self.slots)
        lowest = max(start_offset, 0)
        for index, p in enumerate(_walk(buf, start, end, count)):
            offset = _wrap64(base_offset + p.offset_delta)
            if p.key_len < 0 or offset < lowest:
                continue
            if len(self._offsets) >= limit:
                return index
            self.put(buf[p.key_start : p.key_start + p.key_len], offset)
        return max(count, 0)

    def retain_mask(
        self,
        buf: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        latest_offset: int,
        retain_deletes: bool,
        /,
    ) -> tuple[bytearray, int, bool]:
        mask = bytearray()
        tombstones = False
        for p in _walk(buf, start, end, count):
            offset = _wrap64(base_offset + p.offset_delta)
            retain = offset > latest_offset or (
                p.key_len >= 0
                and offset >= self.get(buf[p.key_start : p.key_start + p.key_len])
                and (p.value_len >= 0 or retain_deletes)
            )
            mask.append(retain)
            tombstones = tombstones or (retain and p.value_len < 0)
        return mask, sum(mask), tombstones
