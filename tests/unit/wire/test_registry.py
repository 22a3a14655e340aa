"""The table of APIs says what the declarations say."""

import pytest

from ottla.wire.registry import (
    APIS,
    DATA,
    REQUESTS,
    RESPONSES,
    message_class,
    message_names,
    request_class,
    response_class,
)
from ottla.wire.schema import schema_of


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_each_api_is_declared_as_the_table_says(api_key: int) -> None:
    request, response = schema_of(request_class(api_key)), schema_of(response_class(api_key))
    assert request.api_key == response.api_key == api_key
    assert request.flexible_from == response.flexible_from == APIS[api_key].flexible_from
    assert request.versions == response.versions
    assert (request.role, response.role) == ("request", "response")


def test_every_key_up_to_the_last_is_taken() -> None:
    assert list(REQUESTS) == list(RESPONSES) == list(range(95))
    assert len(REQUESTS) == 95
    assert 95 not in REQUESTS
    with pytest.raises(KeyError):
        REQUESTS[95]


def test_messages_are_found_by_name() -> None:
    names = message_names()
    assert len(names) == 2 * 95 + sum(len(family) for family in DATA.values())
    assert all(message_class(name).__name__ == name for name in names)
    with pytest.raises(KeyError):
        message_class("NoSuchRequest")


def test_every_message_says_what_it_is_for() -> None:
    assert [name for name in message_names() if not message_class(name).__doc__] == []
