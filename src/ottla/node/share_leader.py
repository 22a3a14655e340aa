"""Share groups where the partitions are led: the service of a node, with its loop, threads and share coordinator.

Owner: the Node.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from ottla.config.broker import BrokerConfig
from ottla.coordinator.ports import Scheduler
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import spawn
from ottla.replication.replica_manager import ReplicaManager
from ottla.server.share_ports import Persister
from ottla.server.share_service import ShareService
from ottla.server.unpacking import Unpacking
from ottla.storage.log import Log


def make_share_service(
    replicas: ReplicaManager,
    persister: Persister,
    scheduler: Scheduler,
    executor: Executor,
    unpacking: Unpacking,
    config: Callable[[], BrokerConfig],
    image: Callable[[], ClusterImage],
) -> ShareService:
    """Put it together; on the running loop."""

    def search(log: Log, timestamp: int) -> Pending[int | None]:
        found: Pending[int | None] = Pending()
        spawn(
            _search(unpacking, log, timestamp, found),
            name=f"search for timestamp {timestamp}",
            owner=str(log.topic_partition),
            failed=lambda error: found.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))),
        )
        return found

    return ShareService(replicas, persister, scheduler, executor, search, config, image)


async def _search(unpacking: Unpacking, log: Log, timestamp: int, found: Pending[int | None]) -> None:
    try:
        at = await unpacking.run(partial(log.offset_for_timestamp, timestamp))
    except KafkaError as error:
        found.fail(error)
        return
    found.resolve(None if at is None else at.offset)
