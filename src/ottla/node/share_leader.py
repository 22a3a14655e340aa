"""Share groups where the partitions are led: the service of a node, with its loop, threads and share coordinator.

Owner: the Node.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from ottla.config.broker import BrokerConfig
from ottla.coordinator.ports import Scheduler
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.replication.replica_manager import ReplicaManager
from ottla.server.share_ports import Persister
from ottla.server.share_service import ShareService
from ottla.storage.log import Log
from ottla.storage.slices import TimestampOffset


def make_share_service(
    replicas: ReplicaManager,
    persister: Persister,
    scheduler: Scheduler,
    executor: Executor,
    config: Callable[[], BrokerConfig],
    image: Callable[[], ClusterImage],
) -> ShareService:
    """Put it together; on the running loop."""
    loop = asyncio.get_running_loop()

    def search(log: Log, timestamp: int) -> Pending[int | None]:
        found: Pending[int | None] = Pending()
        searching = loop.run_in_executor(executor, log.offset_for_timestamp, timestamp)
        searching.add_done_callback(lambda done: _found(done, found))
        return found

    return ShareService(replicas, persister, scheduler, executor, search, config, image)


def _found(done: "asyncio.Future[TimestampOffset | None]", found: Pending[int | None]) -> None:
    if done.cancelled():  # the node stops
        return
    error = done.exception()
    if error is None:
        at = done.result()
        found.resolve(None if at is None else at.offset)
    elif isinstance(error, KafkaError):
        found.fail(error)
    else:
        found.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
