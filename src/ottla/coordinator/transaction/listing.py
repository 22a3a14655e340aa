"""Which transactional ids ListTransactions names: by state, producer id, duration and a pattern for the id.

A pattern is a regular expression of RE2, because that cannot be made to run for ever on the broker's loop; Java's
look-around and back-references are refused as invalid.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ottla.coordinator.transaction.state import STATES_BY_LABEL, Transaction, TransactionState
from ottla.model.errors import ErrorCode, KafkaError


class TransactionFilter(NamedTuple):
    """What is asked for; whatever is empty asks for all."""

    states: frozenset[TransactionState] | None
    unknown_states: list[str]
    producer_ids: frozenset[int]
    min_duration_ms: int
    pattern: Any | None

    @classmethod
    def of(
        cls, states: Sequence[str], producer_ids: Sequence[int], min_duration_ms: int, pattern: str | None
    ) -> "TransactionFilter":
        """The filter of a request; INVALID_REGULAR_EXPRESSION for a pattern that is none."""
        known = frozenset(STATES_BY_LABEL[label] for label in states if label in STATES_BY_LABEL)
        return cls(
            known if states else None,
            [label for label in dict.fromkeys(states) if label not in STATES_BY_LABEL],
            frozenset(producer_ids),
            min_duration_ms,
            _compile(pattern) if pattern else None,
        )

    def takes(self, transactional_id: str, row: Transaction, now_ms: int) -> bool:
        """Is this one asked for?"""
        if self.producer_ids and row.producer_id not in self.producer_ids:
            return False
        if self.states is not None and row.state not in self.states:
            return False
        if self.min_duration_ms >= 0 and now_ms - row.start_ms <= self.min_duration_ms:
            return False
        return self.pattern is None or self.pattern.fullmatch(transactional_id) is not None


def _compile(pattern: str) -> Any:
    import re2  # rarely asked for, and a start need not wait for it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"Transaction ID pattern `{pattern}` is not a valid regular expression: {error}.",
        ) from None
