"""Every message and version that kio knows: it reads what we write, we read what it writes, byte for byte."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.index import schema_name_map
from kio.static.constants import EntityType
from tests.property.wire.kio_oracle import (
    assert_same,
    in_our_terms,
    oracle_class,
    oracle_decode,
    oracle_encode,
)
from tests.property.wire.strategies import messages, normal, oracle_element, oracle_fields, present
from tests.support.messages import every_message

from ottla.wire.codec import decode, encode
from ottla.wire.schema import Array, schema_of


def known_versions() -> list[Any]:
    cases = []
    for cls in every_message():
        for version in schema_of(cls).versions:
            if oracle_class(cls, version) is not None:
                cases.append(pytest.param(cls, version, id=f"{cls.__name__}-v{version}"))
    return cases


@pytest.mark.parametrize(("cls", "version"), known_versions())
@settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kio_and_we_agree(cls: type[Any], version: int, data: st.DataObject) -> None:
    oracle = oracle_class(cls, version)
    assert oracle is not None
    ours = data.draw(messages(cls, version, oracle))

    encoded = encode(ours, version)
    theirs = oracle_decode(oracle, encoded)
    assert_same(ours, in_our_terms(theirs), schema_of(cls).name)

    from_them = oracle_encode(theirs)
    assert from_them == encoded
    decoded, end = decode(cls, from_them, version)
    assert end == len(from_them)
    assert decoded == ours
    assert encode(decoded, version) == from_them


@pytest.mark.parametrize(("cls", "version"), known_versions())
def test_the_fields_are_the_same(cls: type, version: int) -> None:
    oracle = oracle_class(cls, version)
    assert oracle is not None
    _compare_fields(cls, oracle, version, is_flexible=schema_of(cls).is_flexible(version))


def _compare_fields(cls: type, oracle: type, version: int, is_flexible: bool) -> None:
    theirs = oracle_fields(oracle)
    ours = {normal(f.name): f for f in present(cls, version) if f.tag is None or is_flexible}
    assert list(ours) == list(theirs)
    for name, field in ours.items():
        assert field.tag == theirs[name].metadata.get("tag"), name
        element = field.kind.element if isinstance(field.kind, Array) else field.kind
        if isinstance(element, type):
            nested = oracle_element(theirs[name])
            assert nested is not None
            _compare_fields(element, nested, version, is_flexible)


def test_nothing_that_kio_knows_is_missing() -> None:
    known = {(case.values[0], case.values[1]) for case in known_versions()}
    theirs = sum(
        entity is not EntityType.header
        for versions in schema_name_map.values()
        for entities in versions.values()
        for entity in entities
    )
    assert len(known) == theirs
