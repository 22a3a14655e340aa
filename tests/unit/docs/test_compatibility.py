"""docs/compatibility.md says what is served, no more and no less."""

from tests.support.compatibility import PAGE, rendered


def test_the_page_is_true() -> None:
    page = PAGE.read_text()
    assert page == rendered(page), "run: python -m tests.support.compatibility"
