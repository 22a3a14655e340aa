"""When the regular expressions of a group are resolved, and what comes of it.

All of a group's expressions are resolved together, so that they cause one rebalance and not one each. It happens when
a member brings a new one, when topics were created since, and every so often anyway; not more often than every ten
seconds.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.consumer.regex import ResolvedRegularExpression, require_valid, resolve
from ottla.coordinator.group.consumer.subscriptions import SubscriptionCount, count_regex
from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.metadata_hash import TopicHashes
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.result import After, Result, StartTimer
from ottla.model.errors import KafkaError

MIN_REFRESH_INTERVAL_MS: Final = 10_000
# Kafka has an internal setting for it, which nobody is meant to change.
REFRESH_INTERVAL_MS: Final = 600_000
# A group that has been told of its topics looks at them again when they change, and after this time.
METADATA_REFRESH_INTERVAL_MS: Final = 2**31 - 1

Resolved = Mapping[str, frozenset[str]]


class RegexChange(Enum):
    """What a member's request does to the expressions of its group."""

    NONE = "none"
    UPDATED = "updated"
    # The topics of the member's new subscription are known already.
    UPDATED_AND_RESOLVED = "updated and resolved"


class RegularExpressions:
    """See the module. Owned by the ConsumerManager of a shard."""

    def __init__(self, context: GroupContext, hashes: TopicHashes) -> None:
        self._context = context
        self._hashes = hashes
        # Soft: groups whose expressions are being resolved.
        self._resolving: set[str] = set()
        # The last image of the cluster that had new topics; before the first one is known, none.
        self._new_topics_version = -1

    def topics_created(self, version: int) -> None:
        self._new_topics_version = version

    def seen(self, version: int) -> None:
        """The first image that this shard knows."""
        if self._new_topics_version < 0:
            self._new_topics_version = version

    def update(
        self, turn: Turn, group: ConsumerGroup, member: ConsumerGroupMember, updated: ConsumerGroupMember
    ) -> RegexChange:
        """Note what the member's expression has become, and resolve the group's anew if that is due."""
        new = updated.regex
        brought = False
        change = RegexChange.NONE
        if (member.subscribed_topic_regex or "") != (updated.subscribed_topic_regex or ""):
            brought = new is not None and not group.subscribed_regexes.get(new)
            if brought and new is not None:
                require_valid(new)
            change = self._change(turn, group, member.regex, new)
        if brought or len(group.subscribed_regexes):
            self._maybe_resolve(turn, group, member, updated, brought)
        return change

    def _change(self, turn: Turn, group: ConsumerGroup, old: str | None, new: str | None) -> RegexChange:
        if old is not None and group.subscribed_regexes.get(old) == 1:
            turn.records.append(records.regular_expression_tombstone(group.group_id, old))
        known = old is not None if new is None else new in group.resolved_regexes
        if known and (new is None or group.subscribed_regexes.get(new)):
            return RegexChange.UPDATED_AND_RESOLVED
        return RegexChange.UPDATED

    def _maybe_resolve(
        self,
        turn: Turn,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        brought: bool,
    ) -> None:
        if group.group_id in self._resolving:
            return
        last = next(iter(group.resolved_regexes.values()), None)
        if last is not None and turn.now_ms <= last.timestamp_ms + MIN_REFRESH_INTERVAL_MS:
            return
        wanted = group.regexes_with(member, updated)
        due = (
            brought
            or len(wanted) != len(group.resolved_regexes)
            or (0 if last is None else last.version) < self._new_topics_version
            or last is None
            or turn.now_ms > last.timestamp_ms + REFRESH_INTERVAL_MS
        )
        if due and wanted:
            self._resolve(turn, group.group_id, sorted(wanted))

    def _resolve(self, turn: Turn, group_id: str, regexes: list[str]) -> None:
        image, started_ms = self._context.image, turn.now_ms
        work = resolve(regexes, list(image.topics))
        self._resolving.add(group_id)

        def then(found: Resolved, now_ms: int) -> Result[None]:
            return self._resolved(group_id, found, image.offset, started_ms, now_ms)

        background = self._context.background

        def failed(error: KafkaError) -> None:
            self._resolving.discard(group_id)

        turn.failures.append(failed)
        if background is not None:
            turn.effects.append(After(lambda: background.in_slices(group_id, work, then, failed)))
            return
        everything = {}
        for found in work:
            everything = found or {}
        turn.effects.append(
            StartTimer(("consumer", "regex", group_id), 0, lambda now_ms: then(everything, now_ms))
        )

    def _resolved(
        self, group_id: str, found: Resolved, version: int, timestamp_ms: int, now_ms: int
    ) -> Result[None]:
        """Write what was found; the group is assigned anew if that changes what it subscribes to."""
        self._resolving.discard(group_id)
        group = self._context.groups.get(group_id)
        turn = Turn(now_ms)
        if not isinstance(group, ConsumerGroup):
            return turn.result(None)
        counts = dict(group.subscriptions.items())
        bump = False
        for regex, topics in found.items():
            if not group.subscribed_regexes.get(regex):
                continue  # nobody subscribes to it any more
            old = group.resolved_regexes.get(regex)
            bump = _recount(counts, old, topics) or bump
            turn.records.append(records.regular_expression(group_id, regex, topics, version, timestamp_ms))
        metadata_hash = self._hashes.group_hash(counts, self._context.image)
        if bump or metadata_hash != group.metadata_hash:
            epoch = group.epoch + 1
            turn.records.append(records.group_epoch(group_id, epoch, metadata_hash))
            group.refresh_after(now_ms + METADATA_REFRESH_INTERVAL_MS, epoch)
        return turn.result(None)

    def remove_unused(
        self, turn: Turn, group: ConsumerGroup, leaving: list[ConsumerGroupMember]
    ) -> list[str]:
        """Forget the expressions that only these members subscribe to."""
        counts: dict[str, int] = {}
        for member in leaving:
            if member.regex is not None:
                counts[member.regex] = counts.get(member.regex, 0) + 1
        unused = [r for r, count in counts.items() if group.subscribed_regexes.get(r) == count]
        turn.records.extend(records.regular_expression_tombstone(group.group_id, regex) for regex in unused)
        return unused


def _recount(
    counts: dict[str, SubscriptionCount], old: ResolvedRegularExpression | None, new: frozenset[str]
) -> bool:
    """Does the expression stand for other topics than before?"""
    before = frozenset() if old is None else old.topics
    count_regex(counts, before - new, -1)
    count_regex(counts, new - before, 1)
    return before != new
