"""docs/states.md shows the transitions that the code allows."""

from tests.support.state_diagrams import PAGE, rendered


def test_the_page_is_true() -> None:
    assert PAGE.read_text() == rendered(), "run: python -m tests.support.state_diagrams"
