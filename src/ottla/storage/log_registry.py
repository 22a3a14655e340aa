"""Which logs and directories a broker has, and which are gone: the bookkeeping under LogManager. Loop only."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir


class LogRegistry:
    """The current and the future log of every partition, and the directories they lie in."""

    def __init__(self, dirs: list[LogDir]) -> None:
        self.dirs = dirs
        self._dir_of = {log_dir.path: log_dir for log_dir in dirs}
        self._current: dict[TopicPartition, Log] = {}
        self._future: dict[TopicPartition, Log] = {}
        self._offline: dict[TopicPartition, LogDir] = {}
        self._cordoned: frozenset[Path] = frozenset()
        # Asked for ten thousand logs every few seconds: taking the paths apart would cost more than the checkpoint.
        self._placed: dict[Log, LogDir] = {}

    # -- directories --

    @property
    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if log_dir.online]

    @property
    def offline_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if not log_dir.online]

    def directory_id(self, log: Log) -> Uuid | None:
        """The id of the directory the log lies in."""
        return self.dir_of(log).id

    def dir_of(self, log: Log) -> LogDir:
        """The directory the log lies in, or lay in before it left the manager."""
        return self._placed.get(log) or self._dir_of[log.dir.parent]

    def dir_by_id(self, directory_id: Uuid) -> LogDir | None:
        """The online directory with this id."""
        return next((log_dir for log_dir in self.online_dirs if log_dir.id == directory_id), None)

    def dir_by_path(self, path: str) -> LogDir:
        """The directory at this path; LOG_DIR_NOT_FOUND if the broker has no such one."""
        log_dir = self._dir_of.get(Path(path).absolute())
        if log_dir is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
        return log_dir

    def set_cordoned(self, paths: Collection[Path]) -> None:
        """No new log goes into a cordoned directory unless all are (KIP-1066)."""
        self._cordoned = frozenset(path.absolute() for path in paths)

    def is_cordoned(self, log_dir: LogDir) -> bool:
        return log_dir.path in self._cordoned

    def dirs_by_load(self) -> list[LogDir]:
        """Where a new log may go, the directory with the fewest logs first."""
        online = self.online_dirs
        open_to_new = [log_dir for log_dir in online if log_dir.path not in self._cordoned]
        return sorted(open_to_new, key=lambda log_dir: log_dir.log_count) or online[:1]

    # -- logs --

    def get(self, tp: TopicPartition) -> Log | None:
        """The partition's current log."""
        return self._current.get(tp)

    def get_future(self, tp: TopicPartition) -> Log | None:
        """The copy being made in another directory, if one is."""
        return self._future.get(tp)

    def is_offline(self, tp: TopicPartition) -> bool:
        """Did the partition's log go with a failed directory?"""
        return tp in self._offline

    @property
    def current_logs(self) -> Mapping[TopicPartition, Log]:
        return self._current

    @property
    def future_logs(self) -> Mapping[TopicPartition, Log]:
        return self._future

    def all_logs(self) -> Iterator[Log]:
        yield from self._current.values()
        yield from self._future.values()
