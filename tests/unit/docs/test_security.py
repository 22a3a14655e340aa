"""docs/security.md has every key that secures a node, as the code has it, and what it is all for."""

from tests.support.security_keys import PAGE, keys, rendered, written

from ottla.config.effective import OF_SECURITY


def test_every_key_is_there_as_it_is() -> None:
    assert set(keys()) >= OF_SECURITY
    assert written() == rendered(), "run: python -m tests.support.security_keys"


def test_threats_come_first() -> None:
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert headings[0] == "## Threats"
    assert headings[-1] == "## Every key"
