"""What an error says."""

from ottla.model.errors import MAX_MESSAGE_LENGTH, ErrorCode, KafkaError


def test_a_message_is_what_was_said_or_the_name_of_the_code() -> None:
    said = KafkaError(ErrorCode.INVALID_REQUEST, "why")
    assert (str(said), said.message) == ("why", "why")
    silent = KafkaError(ErrorCode.INVALID_REQUEST)
    assert (str(silent), silent.message) == ("INVALID_REQUEST", None)


def test_a_message_that_repeats_a_giant_name_can_still_be_sent() -> None:
    error = KafkaError(ErrorCode.INVALID_REQUEST, "no topic " + "x" * 32_767)
    assert error.message is not None
    assert len(error.message) == MAX_MESSAGE_LENGTH
    assert error.message.startswith("no topic xxx")
    assert str(error) == error.message
