"""The table of APIs says what the declarations say."""

import pytest
from tests.support.messages import every_message

from ottla.wire.registry import APIS, request_class, response_class
from ottla.wire.schema import schema_of


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_each_api_is_declared_as_the_table_says(api_key: int) -> None:
    request, response = schema_of(request_class(api_key)), schema_of(response_class(api_key))
    assert request.api_key == response.api_key == api_key
    assert request.flexible_from == response.flexible_from == APIS[api_key].flexible_from
    assert request.versions == response.versions
    assert (request.role, response.role) == ("request", "response")


def test_every_key_up_to_the_last_is_taken() -> None:
    assert list(APIS) == list(range(95))
    with pytest.raises(KeyError):
        request_class(95)


def test_every_request_that_is_declared_is_in_the_table() -> None:
    declared = [cls for cls in every_message() if schema_of(cls).role != "data"]
    assert {cls.__name__ for cls in declared} == {
        api.name + role for api in APIS.values() for role in ("Request", "Response")
    }


def test_every_message_says_what_it_is_for() -> None:
    assert [cls.__name__ for cls in every_message() if not cls.__doc__] == []
