"""Messages to bytes and back.

Purpose: `encode`, `encode_into` and `decode` for every class declared with `ottla.wire.schema`. The codec of
a message in a version is compiled when it is first needed and kept on the class.

Rules: whatever is wrong with the bytes or the message is a WireError, nothing else; decoding never makes
anything larger than its input warrants. Compiling twice at once is harmless, so no lock. Stateless otherwise.
"""

from struct import error as StructError
from typing import Any, TypeVar

from ottla.wire.compiler import compile_decoder, compile_encoder
from ottla.wire.primitives import Buffer, WireError
from ottla.wire.schema import schema_of

__all__ = [
    "Buffer",
    "WireError",
    "decode",
    "decode_bounded",
    "decoder_for",
    "encode",
    "encode_into",
    "encoder_for",
]

T = TypeVar("T")


def encode(message: object, version: int) -> bytes:
    """The message's bytes in a version."""
    out = bytearray()
    encode_into(out, message, version)
    return bytes(out)


def encode_into(out: bytearray, message: Any, version: int) -> None:
    """Appends the message's bytes to `out`; on an error, what was appended so far stays."""
    encoder = message.ENCODERS.get(version) or encoder_for(type(message), version)
    try:
        encoder(out, message)
    except (StructError, TypeError, AttributeError, ValueError) as error:
        raise WireError(f"{type(message).__name__} v{version} cannot be encoded: {error}") from error


def decode(cls: type[T], buf: Buffer, version: int, offset: int = 0, end: int | None = None) -> tuple[T, int]:
    """Reads one message from `offset`, never past `end`; gives it and the offset after it."""
    if end is not None and end != len(buf):
        buf = memoryview(buf)[:end]
    decoder = cls.DECODERS.get(version) or decoder_for(cls, version)  # type: ignore[attr-defined]
    try:
        result: tuple[T, int] = decoder(buf, offset, len(buf))
    except (IndexError, StructError) as error:
        raise WireError(f"{cls.__name__} v{version} ends before it is complete") from error
    return result


def decode_bounded(
    cls: type[T], buf: Buffer, version: int, offset: int, max_elements: int
) -> tuple[T, int, int]:
    """As `decode`, but of something that lists too much nothing more is made; gives how many elements it has, too."""
    decoders: dict[int, Any] = cls.BOUNDED_DECODERS  # type: ignore[attr-defined]
    if version not in decoders:
        _check(cls, version)
        decoders[version] = compile_decoder(cls, version, bounded=True)
    try:
        message, end, left = decoders[version](buf, offset, len(buf), max_elements)
    except (IndexError, StructError) as error:
        raise WireError(f"{cls.__name__} v{version} ends before it is complete") from error
    return message, end, max_elements - left


def encoder_for(cls: Any, version: int) -> Any:
    """The compiled encoder `f(out, message)`."""
    if version not in cls.ENCODERS:
        _check(cls, version)
        cls.ENCODERS[version] = compile_encoder(cls, version)
    return cls.ENCODERS[version]


def decoder_for(cls: Any, version: int) -> Any:
    """The compiled decoder `f(buf, offset, end) -> (message, offset)`."""
    if version not in cls.DECODERS:
        _check(cls, version)
        cls.DECODERS[version] = compile_decoder(cls, version)
    return cls.DECODERS[version]


def _check(cls: type, version: int) -> None:
    schema = schema_of(cls)
    if version not in schema.versions:
        raise WireError(f"{schema.name} has no version {version}")
