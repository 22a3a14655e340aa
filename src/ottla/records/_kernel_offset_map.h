/* The cleaner's map from keys to their newest offsets, without the Python objects.
 *
 * Open addressing with linear probing over 24-byte slots: a 128-bit digest of the key and its offset. The digest
 * is SipHash-2-4 under a secret drawn for every cleaning, so that nobody can choose keys which collide and have
 * the cleaner drop a record that is the newest of its key (with a plain hash, as MD5, one can). */

#ifndef OTTLA_KERNEL_OFFSET_MAP_H
#define OTTLA_KERNEL_OFFSET_MAP_H

#include <stdlib.h>

#include "_kernel_parse.h"

typedef struct {
    uint64_t low;
    uint64_t high;
    uint64_t offset_plus_one; /* 0: the slot is free */
} slot_t;

typedef struct {
    slot_t *table;
    size_t slots;
    size_t used;
    uint64_t secret[2];
} offset_map_t;

static inline uint64_t
rotate_left(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

#define SIP_ROUND(v)                                                                                        \
    do {                                                                                                    \
        v[0] += v[1];                                                                                       \
        v[1] = rotate_left(v[1], 13) ^ v[0];                                                                \
        v[0] = rotate_left(v[0], 32);                                                                       \
        v[2] += v[3];                                                                                       \
        v[3] = rotate_left(v[3], 16) ^ v[2];                                                                \
        v[0] += v[3];                                                                                       \
        v[3] = rotate_left(v[3], 21) ^ v[0];                                                                \
        v[2] += v[1];                                                                                       \
        v[1] = rotate_left(v[1], 17) ^ v[2];                                                                \
        v[2] = rotate_left(v[2], 32);                                                                       \
    } while (0)

static inline uint64_t
load_little(const uint8_t *p, size_t length)
{
    uint64_t word = 0;
    for (size_t i = 0; i < length; i++) {
        word |= (uint64_t)p[i] << (8 * i);
    }
    return word;
}

/* SipHash-2-4 with its 128-bit output. */
static void
siphash128(const uint64_t secret[2], const uint8_t *data, size_t length, uint64_t digest[2])
{
    uint64_t v[4] = {
        secret[0] ^ 0x736f6d6570736575u,
        secret[1] ^ 0x646f72616e646f6du ^ 0xee,
        secret[0] ^ 0x6c7967656e657261u,
        secret[1] ^ 0x7465646279746573u,
    };
    size_t left = length;
    for (; left >= 8; data += 8, left -= 8) {
        uint64_t word = load_little(data, 8);
        v[3] ^= word;
        SIP_ROUND(v);
        SIP_ROUND(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)length << 56 | load_little(data, left);
    v[3] ^= last;
    SIP_ROUND(v);
    SIP_ROUND(v);
    v[0] ^= last;
    v[2] ^= 0xee;
    for (int i = 0; i < 4; i++) {
        SIP_ROUND(v);
    }
    digest[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    for (int i = 0; i < 4; i++) {
        SIP_ROUND(v);
    }
    digest[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The slot of a key, or the free one where it belongs; NULL if the map is full and does not hold it. */
static slot_t *
map_find(const offset_map_t *map, const uint8_t *key, size_t length, uint64_t digest[2])
{
    siphash128(map->secret, key, length, digest);
    size_t index = (size_t)(digest[0] % map->slots);
    for (size_t probes = 0; probes < map->slots; probes++) {
        slot_t *slot = &map->table[index];
        if (slot->offset_plus_one == 0 || (slot->low == digest[0] && slot->high == digest[1])) {
            return slot;
        }
        index = index + 1 == map->slots ? 0 : index + 1;
    }
    return NULL;
}

/* 0 if the map is full. Offsets are never negative. */
static int
map_put(offset_map_t *map, const uint8_t *key, size_t length, int64_t offset)
{
    uint64_t digest[2];
    slot_t *slot = map_find(map, key, length, digest);
    if (slot == NULL) {
        return 0;
    }
    uint64_t stored = (uint64_t)offset + 1;
    if (slot->offset_plus_one == 0) {
        slot->low = digest[0];
        slot->high = digest[1];
        slot->offset_plus_one = stored;
        map->used++;
    }
    else if (slot->offset_plus_one < stored) {
        slot->offset_plus_one = stored;
    }
    return 1;
}

static int64_t
map_get(const offset_map_t *map, const uint8_t *key, size_t length)
{
    uint64_t digest[2];
    const slot_t *slot = map_find(map, key, length, digest);
    return slot == NULL ? -1 : (int64_t)(slot->offset_plus_one - 1);
}

/* How many records were taken before the map held `max_entries`; the walk says whether the structure broke. */
static int64_t
map_put_records(offset_map_t *map, walk_t *walk, int64_t base_offset, int64_t start_offset, size_t max_entries)
{
    record_t r;
    while (next_record(walk, &r)) {
        int64_t offset = wrapping_add(base_offset, r.offset_delta);
        if (r.key_len < 0 || offset < start_offset) {
            continue;
        }
        if (map->used >= max_entries) {
            return walk->index - 1;
        }
        map_put(map, r.key, (size_t)r.key_len, offset);
    }
    return walk->count;
}

typedef struct {
    int64_t base_offset;
    int64_t latest_offset;
    int retain_deletes;
    int64_t retained;
    int tombstones;
} selection_t;

/* One byte of `mask` a record: 1 if it stays. */
static void
map_select(const offset_map_t *map, walk_t *walk, selection_t *s, uint8_t *mask)
{
    record_t r;
    while (next_record(walk, &r)) {
        int64_t offset = wrapping_add(s->base_offset, r.offset_delta);
        int retain = offset > s->latest_offset ||
                     (r.key_len >= 0 && (r.value_len >= 0 || s->retain_deletes) &&
                      offset >= map_get(map, r.key, (size_t)r.key_len));
        mask[walk->index - 1] = (uint8_t)retain;
        s->retained += retain;
        s->tombstones |= retain && r.value_len < 0;
    }
}

#endif
