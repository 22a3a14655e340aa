"""The diagrams of the documentation are those that the machines go by."""

import pytest
from tests.support.diagrams import DIAGRAMS, rendered


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_true(name: str) -> None:
    page = DIAGRAMS[name][0].read_text()
    assert page == rendered(name, page), "run: python -m tests.support.diagrams"
