"""Decrypts what stores encrypt with passwords (PKCS#5 and PKCS#12), since the standard library has no block cipher.

AES (FIPS 197), triple DES (FIPS 46-3, SP 800-67) and RC2 (RFC 2268), each in CBC mode, decrypting only; the keys come
from PBKDF2 (RFC 8018) or from PKCS#12's own derivation (RFC 7292, B.2). This is for blobs of a few kilobytes when a
program starts. Never use it for traffic: it is slow, and its time depends on the key.

Rules: a blob says itself how often its password is to be hashed. A Budget, one for each store, bounds that and the
bytes, so that a store somebody else made cannot keep us busy. Stateless but for tables that are made once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from ottla.security.tls.der import INTEGER, OBJECT_IDENTIFIER, SEQUENCE, Der, DerError

# Java refuses more in one place; here they are all that a store may ask for. keytool and openssl: 10,000 or fewer.
MAX_ITERATIONS: Final = 5_000_000
# Two seconds of AES, ten of triple DES; a store of all certificate authorities there are has 250 kB.
MAX_ENCRYPTED_BYTES: Final = 1 << 20
MAX_SALT_BYTES: Final = 1_024

_PBES2: Final = "1.2.840.113549.1.5.13"
_PBKDF2: Final = "1.2.840.113549.1.5.12"
PBMAC1: Final = "1.2.840.113549.1.5.14"
HMACS: Final = {
    "1.2.840.113549.2.7": "sha1",
    "1.2.840.113549.2.8": "sha224",
    "1.2.840.113549.2.9": "sha256",
    "1.2.840.113549.2.10": "sha384",
    "1.2.840.113549.2.11": "sha512",
}
DIGESTS: Final = {
    "1.3.14.3.2.26": "sha1",
    "2.16.840.1.101.3.4.2.4": "sha224",
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
}
# What PKCS#12's derivation is for.
FOR_KEY, FOR_IV, FOR_MAC = 1, 2, 3


class Unsupported(ValueError):
    """A way of encrypting that is not known here (its object identifier), for a budget that was kept all the same."""


class WrongPassword(ValueError):
    """What came out is nothing: the password is another one, or the blob was changed."""


class Budget:
    """What the decryption of one store may cost."""

    def __init__(self, iterations: int = MAX_ITERATIONS, size_bytes: int = MAX_ENCRYPTED_BYTES) -> None:
        self._iterations = iterations
        self._bytes = size_bytes

    def take(self, iterations: int, size_bytes: int = 0) -> None:
        if iterations < 1:
            raise DerError(f"{iterations} iterations")
        self._iterations -= iterations
        self._bytes -= size_bytes
        if self._iterations < 0:
            raise DerError(f"passwords hashed more than {MAX_ITERATIONS} times")
        if self._bytes < 0:
            raise DerError(f"more than {MAX_ENCRYPTED_BYTES} encrypted bytes")


def decrypt(algorithm: Der, data: bytes, password: str, budget: Budget) -> bytes:
    """What was encrypted with a password, by the AlgorithmIdentifier that stands beside it."""
    parts = algorithm.parts(2)
    name = parts[0].oid()
    if name == _PBES2:
        return _pbes2(parts[1], data, password, budget)
    salt, count = parts[1].parts(2)[:2]
    iterations = count.integer()
    budget.take(3 * iterations, len(data))  # two blocks for the key, one for the initial vector
    scheme = _PKCS12_SCHEMES.get(name)
    if scheme is None:
        raise Unsupported(name)
    make = pkcs12_key("sha1", bmp(password), salt_of(salt), iterations)
    return _unpadded(scheme.decrypt(make(FOR_KEY, scheme.key_bytes), make(FOR_IV, 8), data), 8)


def _pbes2(params: Der, data: bytes, password: str, budget: Budget) -> bytes:
    found = params.parts(2)
    if found[0].tag == OBJECT_IDENTIFIER:  # Java before 11 wrote the whole AlgorithmIdentifier once more
        found = found[1].parts(2)
    kdf, encryption = found[0].parts(2), found[1].parts(2)
    cipher = _PBES2_CIPHERS.get(encryption[0].oid())
    if cipher is None:
        if kdf[0].oid() == _PBKDF2:
            budget.take(kdf[1].parts(2)[1].integer())
        raise Unsupported(encryption[0].oid())
    iv = encryption[1].octets()
    if len(iv) != cipher.block_bytes:
        raise DerError(f"an initial vector of {len(iv)} bytes")
    key = pbkdf2(kdf, password, cipher.key_bytes, budget, len(data))
    return _unpadded(cipher.decrypt(key, iv, data), cipher.block_bytes)


def pbkdf2(kdf: list[Der], password: str, size: int, budget: Budget, size_bytes: int = 0) -> bytes:
    """A key by PBKDF2; `kdf` is its AlgorithmIdentifier's parts."""
    if kdf[0].oid() != _PBKDF2:
        raise Unsupported(kdf[0].oid())
    salt, count, *rest = kdf[1].parts(2)
    digest = "sha1"
    for option in rest:
        if option.tag == INTEGER and option.integer() != size:
            raise DerError(f"a key of {option.integer()} bytes where {size} are needed")
        if option.tag == SEQUENCE:
            name = option.parts(1)[0].oid()
            if name not in HMACS:
                raise Unsupported(name)
            digest = HMACS[name]
    iterations = count.integer()
    budget.take(iterations, size_bytes)
    return hashlib.pbkdf2_hmac(
        digest, password.encode("utf-8", "surrogatepass"), salt_of(salt), iterations, size
    )


def bmp(password: str) -> bytes:
    """As PKCS#12 hashes a password: two bytes a character, and two zeros. "\\0" is no password at all, as in Java."""
    return b"" if password == "\0" else password.encode("utf-16-be", "surrogatepass") + b"\0\0"


def pkcs12_key(digest: str, password: bytes, salt: bytes, iterations: int) -> Callable[[int, int], bytes]:
    """PKCS#12's derivation: bytes for a purpose, as many as are wanted."""
    hashed = getattr(hashlib, digest)
    block: int = hashed().block_size

    def filled(source: bytes) -> bytes:
        size = block * -(-len(source) // block)
        return (source * (size // len(source) + 1))[:size] if source else b""

    def make(purpose: int, size: int) -> bytes:
        mixed = bytearray(filled(salt) + filled(password))
        out = b""
        while len(out) < size:
            part: bytes = hashed(bytes([purpose]) * block + mixed).digest()
            for _ in range(iterations - 1):
                part = hashed(part).digest()
            out += part
            step = int.from_bytes((part * (block // len(part) + 1))[:block], "big") + 1
            for at in range(0, len(mixed), block):
                total = int.from_bytes(mixed[at : at + block], "big") + step
                mixed[at : at + block] = (total & (1 << 8 * block) - 1).to_bytes(block, "big")
        return out[:size]

    return make


def salt_of(value: Der) -> bytes:
    """A salt of bearable length."""
    salt = value.octets()
    if len(salt) > MAX_SALT_BYTES:
        raise DerError(f"a salt of {len(salt)} bytes")
    return salt


def _unpadded(data: bytes, block: int) -> bytes:
    count = data[-1] if data else 0
    if not 1 <= count <= block or data[-count:] != bytes([count]) * count:
        raise WrongPassword
    return data[:-count]


def _cbc(decrypt_block: Callable[[int], int], iv: bytes, data: bytes) -> bytes:
    """Blocks chained as CBC chains them; a block is a number."""
    size = len(iv)
    if len(data) % size or not data:
        raise WrongPassword
    out = bytearray()
    last = int.from_bytes(iv, "big")
    for at in range(0, len(data), size):
        block = int.from_bytes(data[at : at + size], "big")
        out += (decrypt_block(block) ^ last).to_bytes(size, "big")
        last = block
    return bytes(out)


# -- AES ------------------------------------------------------------------------------------------------


class _AesTables(NamedTuple):
    sbox: bytes
    inverse: bytes
    columns: tuple[tuple[int, ...], ...]  # InvSubBytes and InvMixColumns of one byte, for each row


@cache
def _aes_tables() -> _AesTables:
    """From the definitions: the inverse in GF(2^8), then the affine map (FIPS 197, 5.1.1)."""
    powers, logs = [0] * 256, [0] * 256
    value = 1
    for exponent in range(255):
        powers[exponent], logs[value] = value, exponent
        value ^= value << 1 ^ (0x11B if value & 0x80 else 0)  # times 3, which makes all others
    sbox = bytearray(256)
    for byte in range(256):
        inverted = powers[(255 - logs[byte]) % 255] if byte else 0
        spread = inverted
        for shift in range(1, 5):
            spread ^= (inverted << shift | inverted >> 8 - shift) & 0xFF
        sbox[byte] = spread ^ 0x63
    inverse = bytearray(256)
    for byte, image in enumerate(sbox):
        inverse[image] = byte

    def times(one: int, other: int) -> int:
        return powers[(logs[one] + logs[other]) % 255] if one and other else 0

    first = [
        times(back, 14) << 24 | times(back, 9) << 16 | times(back, 13) << 8 | times(back, 11)
        for back in inverse
    ]
    columns = tuple(
        tuple((word >> 8 * row | word << 32 - 8 * row) & 0xFFFFFFFF for word in first) for row in range(4)
    )
    return _AesTables(bytes(sbox), bytes(inverse), columns)


def _aes_round_keys(key: bytes) -> list[int]:
    """Those of the equivalent inverse cipher (FIPS 197, 5.3.5), the last round's first."""
    tables = _aes_tables()
    sbox = tables.sbox

    def substituted(word: int) -> int:
        return int.from_bytes(word.to_bytes(4, "big").translate(sbox), "big")

    words = [int.from_bytes(key[at : at + 4], "big") for at in range(0, len(key), 4)]
    size, constant = len(words), 1
    for at in range(size, 4 * (size + 7)):
        word = words[-1]
        if at % size == 0:
            word = substituted((word << 8 | word >> 24) & 0xFFFFFFFF) ^ constant << 24
            constant = constant << 1 ^ (0x11B if constant & 0x80 else 0)
        elif size > 6 and at % size == 4:
            word = substituted(word)
        words.append(words[at - size] ^ word)

    def mixed(word: int) -> int:
        one, two, three, four = (sbox[byte] for byte in word.to_bytes(4, "big"))
        first, second, third, fourth = tables.columns
        return first[one] ^ second[two] ^ third[three] ^ fourth[four]

    last = len(words) - 4
    keys: list[int] = []
    for at in range(last, -1, -4):
        group = words[at : at + 4]
        keys += group if at in (0, last) else [mixed(word) for word in group]
    return keys


def _aes_cbc(key: bytes, iv: bytes, data: bytes) -> bytes:
    keys = _aes_round_keys(key)
    _, inverse, (first, second, third, fourth) = _aes_tables()
    middle = range(4, len(keys) - 4, 4)
    final = keys[-4:]

    def block(value: int) -> int:
        a, b = value >> 96 ^ keys[0], value >> 64 & 0xFFFFFFFF ^ keys[1]
        c, d = value >> 32 & 0xFFFFFFFF ^ keys[2], value & 0xFFFFFFFF ^ keys[3]
        for at in middle:
            a, b, c, d = (
                first[a >> 24] ^ second[d >> 16 & 255] ^ third[c >> 8 & 255] ^ fourth[b & 255] ^ keys[at],
                first[b >> 24] ^ second[a >> 16 & 255] ^ third[d >> 8 & 255] ^ fourth[c & 255] ^ keys[at + 1],
                first[c >> 24] ^ second[b >> 16 & 255] ^ third[a >> 8 & 255] ^ fourth[d & 255] ^ keys[at + 2],
                first[d >> 24] ^ second[c >> 16 & 255] ^ third[b >> 8 & 255] ^ fourth[a & 255] ^ keys[at + 3],
            )
        out = 0
        for one, two, three, four, key_word in (
            (a, d, c, b, final[0]),
            (b, a, d, c, final[1]),
            (c, b, a, d, final[2]),
            (d, c, b, a, final[3]),
        ):
            word = inverse[one >> 24] << 24 | inverse[two >> 16 & 255] << 16
            word |= inverse[three >> 8 & 255] << 8 | inverse[four & 255]
            out = out << 32 | word ^ key_word
        return out

    return _cbc(block, iv, data)


# -- DES ------------------------------------------------------------------------------------------------


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


# FIPS 46-3: numbers of bits, the leftmost being 1. IP and its inverse are patterns, so they are made.
_IP: Final = tuple(row + 64 - 8 * step for row in (-6, -4, -2, 0, -7, -5, -3, -1) for step in range(8))
_IP_INVERSE: Final = tuple(_IP.index(bit) + 1 for bit in range(1, 65))
_P: Final = _numbers("16 7 20 21 29 12 28 17 1 15 23 26 5 18 31 10 2 8 24 14 32 27 3 9 19 13 30 6 22 11 4 25")
_PC1: Final = _numbers(
    "57 49 41 33 25 17 9 1 58 50 42 34 26 18 10 2 59 51 43 35 27 19 11 3 60 52 44 36 "
    "63 55 47 39 31 23 15 7 62 54 46 38 30 22 14 6 61 53 45 37 29 21 13 5 28 20 12 4"
)
_PC2: Final = _numbers(
    "14 17 11 24 1 5 3 28 15 6 21 10 23 19 12 4 26 8 16 7 27 20 13 2 "
    "41 52 31 37 47 55 30 40 51 45 33 48 44 49 39 56 34 53 46 42 50 36 29 32"
)
_SHIFTS: Final = (1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1)
# S1 to S8, four rows of sixteen each, a hexadecimal digit an entry.
_S_BOXES: Final = (
    "e4d12fb83a6c5907 0f74e2d1a6cb9538 41e8d62bfc973a50 fc8249175b3ea06d",
    "f18e6b34972dc05a 3d47f28ec01a69b5 0e7ba4d158c6932f d8a13f42b67c05e9",
    "a09e63f51dc7b428 d709346a285ecbf1 d6498f30b12c5ae7 1ad069874fe3b52c",
    "7de3069a1285bc4f d8b56f03472c1ae9 a690cb7df13e5284 3f06a1d8945bc72e",
    "2c417ab6853fd0e9 eb2c47d150fa3986 421bad78f9c5630e b8c71e2d6f09a453",
    "c1af92680d34e75b af427c9561de0b38 9ef528c3704a1db6 432c95fabe17608d",
    "4b2ef08d3c975a61 d0b7491ae35c2f86 14bdc37eaf680592 6bd814a7950fe23c",
    "d2846fb1a93e50c7 1fd8a374c56b0e92 7b419ce206adf358 21e74a8dfc90356b",
)


def _permuted(value: int, size: int, table: tuple[int, ...]) -> int:
    out = 0
    for bit in table:
        out = out << 1 | value >> size - bit & 1
    return out


@cache
def _s_boxes_permuted() -> tuple[tuple[int, ...], ...]:
    """Each S-box by its six bits, followed by P."""
    made = []
    for number, rows in enumerate(text.split() for text in _S_BOXES):
        outputs = (int(rows[bits >> 4 & 2 | bits & 1][bits >> 1 & 15], 16) for bits in range(64))
        made.append(tuple(_permuted(output << 28 - 4 * number, 32, _P) for output in outputs))
    return tuple(made)


def _des_round_keys(key: bytes) -> list[tuple[int, ...]]:
    """Sixteen times eight groups of six bits."""
    chosen = _permuted(int.from_bytes(key, "big"), 64, _PC1)
    left, right = chosen >> 28, chosen & 0xFFFFFFF
    keys = []
    for shift in _SHIFTS:
        left = (left << shift | left >> 28 - shift) & 0xFFFFFFF
        right = (right << shift | right >> 28 - shift) & 0xFFFFFFF
        bits = _permuted(left << 28 | right, 56, _PC2)
        keys.append(tuple(bits >> 42 - 6 * group & 63 for group in range(8)))
    return keys


def _des3_cbc(key: bytes, iv: bytes, data: bytes) -> bytes:
    one, two, three = (_des_round_keys(part) for part in (key[:8], key[8:16], key[16:] or key[:8]))
    # Encrypted with the first, decrypted with the second, encrypted with the third; all that backwards.
    passes = (three[::-1], two, one[::-1])
    s1, s2, s3, s4, s5, s6, s7, s8 = _s_boxes_permuted()

    def block(value: int) -> int:
        value = _permuted(value, 64, _IP)
        left, right = value >> 32, value & 0xFFFFFFFF
        for keys in passes:
            for k1, k2, k3, k4, k5, k6, k7, k8 in keys:
                wide = (right & 1) << 33 | right << 1 | right >> 31
                left, right = (
                    right,
                    left
                    ^ s1[wide >> 28 ^ k1]
                    ^ s2[wide >> 24 & 63 ^ k2]
                    ^ s3[wide >> 20 & 63 ^ k3]
                    ^ s4[wide >> 16 & 63 ^ k4]
                    ^ s5[wide >> 12 & 63 ^ k5]
                    ^ s6[wide >> 8 & 63 ^ k6]
                    ^ s7[wide >> 4 & 63 ^ k7]
                    ^ s8[wide & 63 ^ k8],
                )
            left, right = right, left
        return _permuted(left << 32 | right, 64, _IP_INVERSE)

    return _cbc(block, iv, data)


# -- RC2 ------------------------------------------------------------------------------------------------

# RFC 2268, section 2: made from the digits of pi.
_PI_TABLE: Final = bytes.fromhex(
    "d978f9c419ddb5ed28e9fd794aa0d89d c67e37832b76538e624c6488448bfba2 179a59f587b34f1361456d8d09817d32"
    "bd8f40eb86b77b0bf09521225c6b4e82 54d66593ce60b21c7356c014a78cf1dc 1275ca1f3bbee4d1423dd430a33cb626"
    "6fbf0eda4669075727f21d9bbc944303 f811c7f690ef3ee706c3d52fc8661ed7 08e8eade8052eef784aa72ac354d6a2a"
    "961ad2715a1549744b9fd05e0418a4ec c2e0416e0f51cbcc2491af50a1f47039 997c3a8523b8b47afc02365b25559731"
    "2d5dfa98e38a92ae05df2910676cbac9 d300e6cfe19ea82c6316013f58e289a9 0d38341bab33ffb0bb480c5fb9b1cd2e"
    "c5f3db47e5a59c770aa62068fe7fc1ad"
)


def _rc2_cbc(key: bytes, iv: bytes, data: bytes) -> bytes:
    """With as many effective bits as the key has."""
    expanded = bytearray(key)
    while len(expanded) < 128:
        expanded.append(_PI_TABLE[expanded[-1] + expanded[-len(key)] & 255])
    expanded[128 - len(key)] = _PI_TABLE[expanded[128 - len(key)]]
    for at in range(127 - len(key), -1, -1):
        expanded[at] = _PI_TABLE[expanded[at + 1] ^ expanded[at + len(key)]]
    keys = [expanded[at] | expanded[at + 1] << 8 for at in range(0, 128, 2)]
    shifts = (1, 2, 3, 5)

    def block(value: int) -> int:
        raw = value.to_bytes(8, "big")
        words = [raw[at] | raw[at + 1] << 8 for at in range(0, 8, 2)]
        for turn in range(15, -1, -1):
            for at in (3, 2, 1, 0):
                shift = shifts[at]
                word = words[at] >> shift | words[at] << 16 - shift
                mix = words[at - 1] & words[at - 2] | ~words[at - 1] & words[at - 3]
                words[at] = word - keys[4 * turn + at] - mix & 0xFFFF
            if turn in (11, 5):
                for at in (3, 2, 1, 0):
                    words[at] = words[at] - keys[words[at - 1] & 63] & 0xFFFF
        out = 0
        for word in words:
            out = out << 16 | (word & 255) << 8 | word >> 8
        return out

    return _cbc(block, iv, data)


class _Cipher(NamedTuple):
    decrypt: Callable[[bytes, bytes, bytes], bytes]
    key_bytes: int
    block_bytes: int = 8


_PBES2_CIPHERS: Final = {
    "2.16.840.1.101.3.4.1.2": _Cipher(_aes_cbc, 16, 16),
    "2.16.840.1.101.3.4.1.22": _Cipher(_aes_cbc, 24, 16),
    "2.16.840.1.101.3.4.1.42": _Cipher(_aes_cbc, 32, 16),
    "1.2.840.113549.3.7": _Cipher(_des3_cbc, 24),
}
_PKCS12_SCHEMES: Final = {
    "1.2.840.113549.1.12.1.3": _Cipher(_des3_cbc, 24),
    "1.2.840.113549.1.12.1.4": _Cipher(_des3_cbc, 16),
    "1.2.840.113549.1.12.1.5": _Cipher(_rc2_cbc, 16),
    "1.2.840.113549.1.12.1.6": _Cipher(_rc2_cbc, 5),
}
