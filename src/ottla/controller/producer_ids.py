"""Producer ids, given to brokers by the block (KIP-730).

Rules: pure; an id that was in a block is never given away again.
"""

from ottla.controller.result import Result
from ottla.controller.rules import ClusterRules
from ottla.metadata.records import ProducerIdsRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages import producers as m

BLOCK_SIZE = 1_000
_MAX_ID = (1 << 63) - 1


def allocate_producer_ids(
    rules: ClusterRules, request: m.AllocateProducerIdsRequest
) -> Result[m.AllocateProducerIdsResponse]:
    """The next block, for a broker."""
    rules.check_broker_epoch(request.broker_id, request.broker_epoch)
    first = max(rules.image.next_producer_id, 0)
    if first > _MAX_ID - BLOCK_SIZE:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit",
        )
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    response = m.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE)
    return Result(response, [record])
