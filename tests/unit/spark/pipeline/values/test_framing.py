"""Values that a schema registry's serializer wrote: what is said of them."""

from __future__ import annotations

import pytest

from ottla.spark.pipeline.values.rows import framed


def test_the_schema_id_is_named_and_what_to_do() -> None:
    said = framed(b'\x00\x00\x00\x01\x02{"page": "a"}')
    assert said is not None
    assert said.startswith("begins like a Confluent-framed value (magic byte 0, schema id 258): ")
    assert "format='raw'" in said
    assert "substring(value, 6)" in said


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00x", b"\x00\xff\xff\xff\xffx", b"\x01\x00\x00\x00\x01x"],
)
def test_others_are_what_their_codec_says(value: bytes) -> None:
    assert framed(value) is None
