"""Kafka's QuorumController: answers every admin and broker request, and acts by itself on what brokers do.

Purpose: ties the pure decisions to the runtime, and both to the quorum's leaderships, any number of times: a standby
follows the log as every node does, by its ImageLoader; when this node leads and everything before its epoch has been
replayed, the controller goes on from there, and gives back what is committed when it leads no longer. Rules: a response
leaves only when its records are committed; a request that is refused as a whole is answered in its own form, never with
an exception. What is not in the log (who was heard from when, timers) begins anew with each leadership. All on the
loop. Make it, start() when the log is loaded, and at the end stop(). Owned by the node.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar

from ottla.controller import (
    cluster_control,
    configuration_control,
    feature_control,
    replication_control,
    topics,
)
from ottla.controller.access import (
    acl_control,
    client_quota_control,
    delegation_token_control,
    scram_control,
)
from ottla.controller.access.delegation_token_control import TokenSettings
from ottla.controller.channel import ControllerDecisions
from ottla.controller.cluster_control import BrokerControlState, BrokerHeartbeatManager, HeartbeatDecision
from ottla.controller.feature_control import KRaftVersion, activation_records
from ottla.controller.refusals import refusal
from ottla.controller.registration import ControllerRegistrationManager
from ottla.controller.result import ControllerResult, Decision, RequestContext
from ottla.controller.rules import MIN_ISR, UNCLEAN_ELECTION, ClusterRules, ControllerSettings
from ottla.controller.runtime import ControllerRuntime, MetadataAppender
from ottla.controller.topics import Sources
from ottla.metadata.features import SUPPORTED_FEATURES
from ottla.metadata.image import ClusterImage
from ottla.metadata.loader import MetadataLoader
from ottla.metadata.records import MetadataRecord, NoOpRecord
from ottla.metadata.registrations import Endpoint
from ottla.metadata.snapshot import SnapshotId, read_bootstrap
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid, random_uuid, uuid_to_str
from ottla.model.tasks import spawn, spawn_restarting
from ottla.model.time_slice import TimeSlice, next_turn
from ottla.raft.driver import RaftListener
from ottla.raft.image_loader import ImageLoader
from ottla.raft.quorum_state import NONE as NOBODY
from ottla.security.quotas import ClientQuotaManager, ControllerMutationQuota, QuotaType
from ottla.wire.messages import producers
from ottla.wire.messages.admin import cluster as feature_messages
from ottla.wire.messages.admin import configs as config_messages
from ottla.wire.messages.admin import quotas
from ottla.wire.messages.admin import topics as topic_messages
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import replication
from ottla.wire.messages.security import acls as acl_messages
from ottla.wire.messages.security import scram, tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")
Serve = Callable[["Controller", Q, RequestContext], Coroutine[Any, Any, T]]

OWNER = "controller"
TICK_INTERVAL_S = 1.0
# How long it may take to find out which hosts of a request have addresses, and how many hosts it may name.
RESOLVE_TIMEOUT_S = 5.0
MAX_RESOLVED_HOSTS = 100
# The first versions whose clients know THROTTLING_QUOTA_EXCEEDED: they are refused, others only have to wait (KIP-599).
STRICT_CREATE_TOPICS = 6
STRICT_DELETE_TOPICS = 5
STRICT_CREATE_PARTITIONS = 3


class QuorumView(Protocol):
    """What a controller looks up in the QuorumState."""

    @property
    def is_only_voter(self) -> bool: ...


class MetadataQuorum(MetadataAppender, Protocol):
    """What a controller needs of the quorum: the RaftDriver, or a simulation of it."""

    @property
    def state(self) -> QuorumView: ...

    @property
    def kraft_version(self) -> int: ...

    @property
    def has_observers(self) -> bool:
        """Does anyone follow the log over the network, other voters among them?"""

    async def start(self, listener: RaftListener) -> None:
        """Takes part in the quorum from now on; a sole voter leads when this returns."""

    async def stop(self) -> None: ...

    async def upgrade_kraft_version(self, level: int, *, validate_only: bool = False) -> int | None:
        """Appends what raises the version, or only says whether it would; KafkaError if it cannot be."""


def _refusing(serve: Serve[Q, T]) -> Serve[Q, T]:
    """Answers a request that is refused as a whole in its own form."""

    @wraps(serve)
    async def served(controller: "Controller", request: Q, context: RequestContext) -> T:
        try:
            return await serve(controller, request, context)
        except KafkaError as error:
            refused: T = refusal(request, context.api_version, error.code, error.message)
            return refused

    return served


class _MutationQuota:
    """A ControllerMutationQuota, with the time."""

    __slots__ = ("_clock", "_quota")

    def __init__(self, quota: ControllerMutationQuota, clock: Clock) -> None:
        self._quota = quota
        self._clock = clock

    def permit(self, partitions: int) -> None:
        self._quota.record(partitions, self._clock.monotonic_ms())

    @property
    def throttle_ms(self) -> int:
        return self._quota.throttle_ms(self._clock.monotonic_ms())


class Controller:
    """A controller of the quorum: standby, or active."""

    def __init__(
        self,
        raft: MetadataQuorum,
        loader: ImageLoader,
        settings: ControllerSettings,
        clock: Clock,
        *,
        metadata_dir: Path,
        listeners: tuple[Endpoint, ...] = (),
        channel: ControllerDecisions | None = None,
        random: Random | None = None,
        new_uuid: Callable[[], Uuid] = random_uuid,
        has_address: Callable[[str], Awaitable[bool]] | None = None,
        quotas: ClientQuotaManager | None = None,
    ) -> None:
        """`loader` is the node's; `channel` leads to the active controller, here if nothing else is given.

        `has_address` asks the resolver for a host, which may take its time. `quotas` are those of changes of topics.
        """
        self.raft = raft
        self.settings = settings
        self.publisher = loader.publisher
        self.heartbeats = self._new_heartbeats(settings)
        self._loader = loader
        self._clock = clock
        self._metadata_dir = metadata_dir
        self._sources = Sources(random or Random(), new_uuid)  # placement, not security
        self._runtime = ControllerRuntime(raft, self.publisher, clock, loader.time_slice)
        request = _registration_request(settings.node_id, self._sources.new_uuid(), listeners)
        self._registration = ControllerRegistrationManager(request, self.publisher, channel or self)
        self._ticking: asyncio.Task[None] | None = None
        # Called each time it has become active.
        self.on_active: Callable[[], None] | None = None
        # Done when it has been active for the first time; made when the loop is there.
        self._was_active: asyncio.Future[None] | None = None
        self._balance_interval_ms = settings.static["leader.imbalance.check.interval.seconds"] * 1000
        self._unclean_interval_ms = settings.static["unclean.leader.election.interval.ms"]
        self._next_balance_ms = clock.monotonic_ms() + self._balance_interval_ms
        self._next_unclean_ms = clock.monotonic_ms() + self._unclean_interval_ms
        self._tokens = TokenSettings.from_config(settings.static)
        self._next_sweep_ms = clock.monotonic_ms() + self._tokens.check_interval_ms
        self._has_address = has_address or _has_address
        self._quotas = ClientQuotaManager(QuotaType.CONTROLLER_MUTATION) if quotas is None else quotas

    # --- life

    def register_through(self, channel: ControllerDecisions) -> None:
        """The way to the active controller, if that is made after this one; before start()."""
        self._registration.channel = channel

    async def start(self) -> None:
        """Joins the quorum as standby. A sole voter is active, and has said so in the log, when this returns."""
        self._was_active = asyncio.get_running_loop().create_future()
        self._loader.start()
        self._registration.start()
        self._ticking = spawn_restarting(self._tick_forever, name="periodic work", owner=OWNER)
        await self.raft.start(self)
        if self.raft.state.is_only_voter:
            await self._loader.caught_up()
            await self._was_active
            await self._registration.settled()

    async def stop(self) -> None:
        """Stops deciding, and leaves the quorum with everything in the log on disk."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        await self._registration.stop()
        self._runtime.resign()
        await self._loader.stop()
        try:
            await self.raft.stop()
        finally:
            self.settings.policies.close()

    # --- the quorum's events (RaftListener)

    def on_snapshot(self, snapshot: SnapshotId) -> None:
        self.on_resigned()  # whoever leads is given none
        self._loader.on_snapshot(snapshot)

    def on_commit(self, high_watermark: int) -> None:
        self._loader.on_commit(high_watermark)
        self._runtime.on_commit(high_watermark)

    def on_leader(self, epoch: int) -> None:
        self.on_resigned()
        self._loader.when_caught_up(partial(self._activate, epoch))

    def on_resigned(self) -> None:
        """What waits fails; what is committed is given back, and what of the rest others commit comes like theirs."""
        self._loader.when_caught_up(None)
        if self._runtime.active:
            logger.info("no longer the active controller of epoch %d", self._runtime.epoch)
            self._loader.take_back(self._runtime.resign())

    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        if leader_id != NOBODY:
            logger.info("the controller of epoch %d is node %d", epoch, leader_id)
            self._registration.leader_changed()

    def on_failure(self, error: Exception) -> None:
        """The log is lost."""
        try:
            self._runtime.resign()
        finally:
            self._loader.on_failure(error)  # it ends the node
            self._fail_start(error)

    # --- becoming active

    def _activate(self, epoch: int) -> None:
        """Everything before this epoch is replayed: goes on from it, in the same turn of the loop."""
        if not self.raft.is_leader or self.raft.epoch != epoch:
            return  # and will be told so
        state = self._loader.hand_over()
        records = self._activation_records(state)
        self._runtime.activate(epoch, state)
        self._begin_soft_state(state.image)
        # The first in the log, before anybody else decides.
        written = self._runtime.submit(lambda image: ControllerResult(None, records))
        if written.done() and (refusal := written.exception()) is not None:
            raise refusal  # without them nothing else can be decided
        completing = self._complete_activation(epoch, written)
        spawn(completing, name="becoming active", owner=OWNER, failed=self._fail_start)
        self._registration.leader_changed()

    def _activation_records(self, state: MetadataLoader) -> list[MetadataRecord]:
        image = state.image
        bootstrap = [] if image.metadata_version is not None else read_bootstrap(self._metadata_dir)
        return activation_records(
            image, state.transaction_start_offset, bootstrap, self.settings.static[MIN_ISR]
        )

    def _begin_soft_state(self, image: ClusterImage) -> None:
        now_ms = self._clock.monotonic_ms()
        # Whoever still acts on the last leadership's has it to himself.
        self.heartbeats = self._new_heartbeats(self.settings)
        self.heartbeats.start(image, now_ms)
        self._next_balance_ms = now_ms + self._balance_interval_ms
        self._next_unclean_ms = now_ms + self._unclean_interval_ms
        self._next_sweep_ms = now_ms + self._tokens.check_interval_ms

    @staticmethod
    def _new_heartbeats(settings: ControllerSettings) -> BrokerHeartbeatManager:
        return BrokerHeartbeatManager(settings.static["broker.session.timeout.ms"])

    async def _complete_activation(self, epoch: int, written: "asyncio.Future[None]") -> None:
        try:
            await written
        except KafkaError as error:
            logger.warning("not active in epoch %d after all: %s", epoch, error)
            return
        logger.info("the active controller of epoch %d", epoch)
        if self.on_active is not None:
            self.on_active()
        # An earlier one may have been in the middle of thousands.
        unfinished = await self._repair()
        if unfinished is not None:
            logger.warning("not all partitions have been looked at: %s", unfinished)
        if self._was_active is not None and not self._was_active.done() and self._runtime.epoch == epoch:
            self._was_active.set_result(None)

    def _fail_start(self, error: Exception) -> None:
        if self._was_active is not None and not self._was_active.done():
            self._was_active.set_exception(error)
            self._was_active.exception()  # the start may have failed for the same reason, and look no more

    # --- deciding

    @property
    def image(self) -> ClusterImage:
        """The newest committed image."""
        return self.publisher.image

    @property
    def active(self) -> bool:
        return self._runtime.active

    @property
    def epoch(self) -> int:
        return self.raft.epoch

    def _submit(self, decide: Callable[[ClusterRules], Decision[T]]) -> "asyncio.Future[T]":
        return self._runtime.submit(lambda image: decide(ClusterRules(image, self.settings)))

    async def _decide(self, decide: Callable[..., Decision[T]], *arguments: object, **named: object) -> T:
        return await self._submit(lambda rules: decide(rules, *arguments, **named))

    async def _change_broker(self, decide: Callable[[ClusterRules], ControllerResult[T]]) -> T:
        """Decides what becomes of a broker, and, where its partitions did not fit in, also the rest, in slices."""
        repairs: list[asyncio.Task[KafkaError | None]] = []

        def begin_repair() -> None:
            # A task of its own: whoever asked may leave.
            repairs.append(spawn(self._repair(), name="changing a broker's partitions", owner=OWNER))

        def deciding(rules: ClusterRules) -> ControllerResult[T]:
            result = decide(rules)
            return replace(result, then=begin_repair) if len(result.records) > rules.slice_records else result

        response = await self._submit(deciding)
        for repair in repairs:
            error = await asyncio.shield(repair)
            if error is not None:
                raise error
        return response

    async def _repair(self) -> KafkaError | None:
        try:
            await self._submit_repair()
        except KafkaError as error:
            return error
        return None

    def _submit_repair(self) -> "asyncio.Future[None]":
        progress = replication_control.RepairProgress()
        return self._submit(lambda rules: replication_control.repair_partitions(rules, progress))

    # --- topics

    @_refusing
    async def create_topics(
        self, request: topic_messages.CreateTopicsRequest, context: RequestContext
    ) -> topic_messages.CreateTopicsResponse:
        _check_time(request.timeout_ms)
        quota = self._mutation_quota(context, STRICT_CREATE_TOPICS)
        response = await self._decide(topics.create_topics, request, context, self._sources, quota.permit)
        response.throttle_time_ms = quota.throttle_ms
        return response

    @_refusing
    async def delete_topics(
        self, request: topic_messages.DeleteTopicsRequest, context: RequestContext
    ) -> topic_messages.DeleteTopicsResponse:
        _check_time(request.timeout_ms)
        quota = self._mutation_quota(context, STRICT_DELETE_TOPICS)
        response = await self._decide(topics.delete_topics, request, context, quota.permit)
        response.throttle_time_ms = quota.throttle_ms
        return response

    @_refusing
    async def create_partitions(
        self, request: topic_messages.CreatePartitionsRequest, context: RequestContext
    ) -> topic_messages.CreatePartitionsResponse:
        _check_time(request.timeout_ms)
        quota = self._mutation_quota(context, STRICT_CREATE_PARTITIONS)
        response = await self._decide(topics.create_partitions, request, self._sources, quota.permit)
        response.throttle_time_ms = quota.throttle_ms
        return response

    def _mutation_quota(self, context: RequestContext, strict_since: int) -> "_MutationQuota":
        """What one request may change of topics (KIP-599); a broker that asks in its own name has no quota."""
        strict = context.api_version >= strict_since
        now_ms = self._clock.monotonic_ms()
        if context.principal is None:
            return _MutationQuota(ControllerMutationQuota(None, strict=strict), self._clock)
        quota = self._quotas.mutation_quota(context.principal, context.client_id, now_ms, strict=strict)
        return _MutationQuota(quota, self._clock)

    # --- configuration and features

    @_refusing
    async def incremental_alter_configs(
        self, request: config_messages.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> config_messages.IncrementalAlterConfigsResponse:
        response = await self._decide(configuration_control.incremental_alter_configs, request, context)
        self._follow_configs(request)
        return response

    @_refusing
    async def alter_configs(
        self, request: config_messages.AlterConfigsRequest, context: RequestContext
    ) -> config_messages.AlterConfigsResponse:
        response = await self._decide(configuration_control.alter_configs, request, context)
        self._follow_configs(request)
        return response

    def _follow_configs(
        self, request: config_messages.IncrementalAlterConfigsRequest | config_messages.AlterConfigsRequest
    ) -> None:
        """Whoever has just permitted unclean elections waits for one; Kafka looks every five minutes."""
        if any(entry.name == UNCLEAN_ELECTION for change in request.resources for entry in change.configs):
            self._next_unclean_ms = self._clock.monotonic_ms()
            spawn(self._elect_unclean_now(), name="electing leaders uncleanly", owner=OWNER)

    async def _elect_unclean_now(self) -> None:
        try:
            await self._elect_unclean()
        except KafkaError as error:
            logger.warning("partitions without a leader have not been looked at: %s", error)

    @_refusing
    async def update_features(
        self, request: feature_messages.UpdateFeaturesRequest, context: RequestContext
    ) -> feature_messages.UpdateFeaturesResponse:
        wanted = feature_control.kraft_version_upgrade(request)
        version = await self._kraft_version(wanted)
        if wanted is not None and not request.validate_only:
            tried = await self._submit(
                lambda rules: feature_control.update_features(
                    rules, request, context, version
                ).without_records()
            )
            if tried.error_code:
                return tried
            # Its records come before the one that whoever asked waits for.
            await self.raft.upgrade_kraft_version(wanted)
        return await self._decide(feature_control.update_features, request, context, version)

    async def _kraft_version(self, wanted: int | None) -> KRaftVersion:
        """The quorum's version, and what the quorum says to another."""
        refusal: KafkaError | None = None
        if wanted is not None and self.active:
            try:
                await self.raft.upgrade_kraft_version(wanted, validate_only=True)
            except KafkaError as error:
                refusal = error
        return KRaftVersion(self.raft.kraft_version, refusal)

    # --- access rules

    @_refusing
    async def create_acls(
        self, request: acl_messages.CreateAclsRequest, context: RequestContext
    ) -> acl_messages.CreateAclsResponse:
        return await self._decide(acl_control.create_acls, request, self._sources.new_uuid)

    @_refusing
    async def delete_acls(
        self, request: acl_messages.DeleteAclsRequest, context: RequestContext
    ) -> acl_messages.DeleteAclsResponse:
        return await self._decide(acl_control.delete_acls, request)

    # --- users: credentials, quotas, tokens

    @_refusing
    async def alter_user_scram_credentials(
        self, request: scram.AlterUserScramCredentialsRequest, context: RequestContext
    ) -> scram.AlterUserScramCredentialsResponse:
        return await self._decide(scram_control.alter_user_scram_credentials, request)

    @_refusing
    async def alter_client_quotas(
        self, request: quotas.AlterClientQuotasRequest, context: RequestContext
    ) -> quotas.AlterClientQuotasResponse:
        hosts = client_quota_control.host_names(request)
        known = await self._with_address(hosts) if hosts and self.active else ()
        return await self._decide(client_quota_control.alter_client_quotas, request, known)

    async def _with_address(self, hosts: Sequence[str]) -> list[str]:
        """Those of the hosts that the resolver knows; who waits too long for it knows no more."""
        known = []
        with suppress(TimeoutError):
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                for host in hosts[:MAX_RESOLVED_HOSTS]:
                    if await self._has_address(host):
                        known.append(host)
        return known

    @_refusing
    async def create_delegation_token(
        self, request: tokens.CreateDelegationTokenRequest, context: RequestContext
    ) -> tokens.CreateDelegationTokenResponse:
        return await self._decide(
            delegation_token_control.create_delegation_token,
            request,
            context,
            self._tokens,
            token_id=uuid_to_str(self._sources.new_uuid()),
            now_ms=self._clock.now_ms(),
        )

    @_refusing
    async def renew_delegation_token(
        self, request: tokens.RenewDelegationTokenRequest, context: RequestContext
    ) -> tokens.RenewDelegationTokenResponse:
        return await self._decide(
            delegation_token_control.renew_delegation_token,
            request,
            context,
            self._tokens,
            now_ms=self._clock.now_ms(),
        )

    @_refusing
    async def expire_delegation_token(
        self, request: tokens.ExpireDelegationTokenRequest, context: RequestContext
    ) -> tokens.ExpireDelegationTokenResponse:
        return await self._decide(
            delegation_token_control.expire_delegation_token,
            request,
            context,
            self._tokens,
            now_ms=self._clock.now_ms(),
        )

    # --- brokers

    @_refusing
    async def register_broker(
        self, request: lifecycle.BrokerRegistrationRequest, context: RequestContext
    ) -> lifecycle.BrokerRegistrationResponse:
        def decide(rules: ClusterRules) -> ControllerResult[lifecycle.BrokerRegistrationResponse]:
            now_ms = self._clock.monotonic_ms()
            if request.broker_id == self.settings.node_id and not context.client_address:
                self.heartbeats.begins_anew(request.broker_id)  # it did not come over a connection
            result = cluster_control.register_broker(
                rules,
                request,
                self.heartbeats,
                new_epoch=self._runtime.next_offset,
                kraft_version=self.raft.kraft_version,
                clean_shutdown_detection=context.api_version >= 3,
                now_ms=now_ms,
            )
            if result.more:
                return result
            # At once: another process with its id is the second one from now on.
            epoch = result.response.broker_epoch
            heard = partial(self.heartbeats.register, request.broker_id, epoch, now_ms)
            return replace(result, then=heard)

        try:
            response = await self._submit(decide)
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:  # which it asks next
                logger.warning("broker %d is not registered: %s", request.broker_id, error)
            raise
        logger.info("broker %d is registered with epoch %d", request.broker_id, response.broker_epoch)
        return response

    @_refusing
    async def broker_heartbeat(
        self, request: lifecycle.BrokerHeartbeatRequest, context: RequestContext
    ) -> lifecycle.BrokerHeartbeatResponse:
        heartbeats = self.heartbeats
        decision = await self._change_broker(partial(self._heartbeat, request))
        if decision.state is BrokerControlState.CONTROLLED_SHUTDOWN:
            heartbeats.set_controlled_shutdown_offset(request.broker_id, self.image.offset)
        elif decision.state is BrokerControlState.SHUTDOWN_NOW:
            heartbeats.let_go(request.broker_id)
        return decision.response

    def _heartbeat(
        self, request: lifecycle.BrokerHeartbeatRequest, rules: ClusterRules
    ) -> ControllerResult[HeartbeatDecision]:
        result = cluster_control.broker_heartbeat(rules, request, self.heartbeats)
        self.heartbeats.touch(
            request.broker_id,
            request.broker_epoch,
            request.current_metadata_offset,
            self._clock.monotonic_ms(),
        )
        return result

    def last_heard_ms(self, broker_id: int, broker_epoch: int) -> float | None:
        """When this life of the broker was last heard from; None if nobody waits for it, or this is a standby."""
        return self.heartbeats.last_heard_ms(broker_id, broker_epoch) if self.active else None

    async def fence_gone(self, broker_id: int, broker_epoch: int, heard_ms: float) -> bool:
        """Fences a broker whose process has ended, and lets its next life register at once.

        Not if it has been heard from after `heard_ms`, or if another life of it is registered by now.
        """

        def decide(rules: ClusterRules) -> ControllerResult[bool]:
            broker = rules.image.brokers.get(broker_id)
            heard = self.heartbeats.last_heard_ms(broker_id, broker_epoch)
            if broker is None or broker.epoch != broker_epoch or heard not in (heard_ms, None):
                return ControllerResult(False)
            self.heartbeats.let_go(broker_id)
            if broker.fenced:
                return ControllerResult(False)
            return ControllerResult(True, cluster_control.fence_broker(rules, broker_id))

        return await self._change_broker(decide)

    @_refusing
    async def unregister_broker(
        self, request: lifecycle.UnregisterBrokerRequest, context: RequestContext
    ) -> lifecycle.UnregisterBrokerResponse:
        heartbeats = self.heartbeats
        response = await self._change_broker(lambda rules: cluster_control.unregister_broker(rules, request))
        heartbeats.remove(request.broker_id)
        return response

    @_refusing
    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        return await self._decide(cluster_control.register_controller, request)

    @_refusing
    async def assign_replicas_to_dirs(
        self, request: lifecycle.AssignReplicasToDirsRequest, context: RequestContext
    ) -> lifecycle.AssignReplicasToDirsResponse:
        return await self._decide(cluster_control.assign_replicas_to_dirs, request)

    @_refusing
    async def allocate_producer_ids(
        self, request: producers.AllocateProducerIdsRequest, context: RequestContext
    ) -> producers.AllocateProducerIdsResponse:
        return await self._decide(cluster_control.allocate_producer_ids, request)

    # --- partitions

    @_refusing
    async def alter_partition(
        self, request: replication.AlterPartitionRequest, context: RequestContext
    ) -> replication.AlterPartitionResponse:
        return await self._decide(replication_control.alter_partition, request, context)

    @_refusing
    async def elect_leaders(
        self, request: replication.ElectLeadersRequest, context: RequestContext
    ) -> replication.ElectLeadersResponse:
        if request.topic_partitions != []:
            _check_time(request.timeout_ms)
        return await self._elect_leaders(request)

    async def _elect_leaders(
        self, request: replication.ElectLeadersRequest
    ) -> replication.ElectLeadersResponse:
        """Of thousands, some at a time: each has an answer of its own."""
        asked = replication_control.asked_elections(self.image, request)
        if sum(len(numbers) for _, numbers in asked) <= ClusterRules.slice_records:
            return await self._decide(replication_control.elect_leaders, request)
        pieces: list[asyncio.Future[replication.ElectLeadersResponse]] = []
        for piece in replication_control.elections_in_pieces(asked, ClusterRules.slice_records):
            pieces.append(self._submit(partial(self._elect_piece, request, piece)))
            await next_turn()
        return replication_control.joined_elections(await asyncio.gather(*pieces))

    @staticmethod
    def _elect_piece(
        request: replication.ElectLeadersRequest, piece: replication_control.Asked, rules: ClusterRules
    ) -> Decision[replication.ElectLeadersResponse]:
        return replication_control.elect_leaders(rules, request, piece)

    @_refusing
    async def alter_partition_reassignments(
        self, request: replication.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.AlterPartitionReassignmentsResponse:
        if request.topics:
            _check_time(request.timeout_ms)
        return await self._decide(replication_control.alter_partition_reassignments, request)

    async def list_partition_reassignments(
        self, request: replication.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.ListPartitionReassignmentsResponse:
        return await TimeSlice().run(replication_control.list_partition_reassignments(self.image, request))

    # --- by itself

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._tick_interval_s())
            try:
                await self.tick()
            except KafkaError as error:
                # That another one is active has been said, and the work is the other one's now.
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    logger.warning("periodic work of the controller failed: %s", error)

    def _tick_interval_s(self) -> float:
        return (
            min(TICK_INTERVAL_S, self._idle_interval_ms / 1000) if self._wants_no_ops() else TICK_INTERVAL_S
        )

    async def tick(self) -> None:
        """Everything that is due by time."""
        if self.active:
            await self._fence_expired()
            await self._balance()
            await self._elect_unclean()
            await self._sweep_tokens()
            await self._write_no_op()
        await self._loader.maybe_snapshot()

    async def _fence_expired(self) -> None:
        for broker_id in self.heartbeats.expired(self.image, self._clock.monotonic_ms()):
            if await self._change_broker(partial(self._fence, broker_id)):
                logger.warning("broker %d has not been heard from: it is fenced", broker_id)

    def _fence(self, broker_id: int, rules: ClusterRules) -> ControllerResult[bool]:
        # It may have been heard from since, or be gone.
        if broker_id not in self.heartbeats.expired(rules.image, self._clock.monotonic_ms()):
            return ControllerResult(False)
        return ControllerResult(True, cluster_control.fence_broker(rules, broker_id))

    async def _balance(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_balance_ms:
            return
        self._next_balance_ms = now_ms + self._balance_interval_ms
        if self.settings.static["auto.leader.rebalance.enable"]:
            await self._submit(replication_control.balance_leaders)
        await self._submit_repair()

    async def _elect_unclean(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_unclean_ms:
            self._next_unclean_ms = now_ms + self._unclean_interval_ms
            await self._submit(replication_control.elect_unclean_leaders)

    async def _sweep_tokens(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + self._tokens.check_interval_ms
            await self._decide(delegation_token_control.sweep_expired_tokens, self._clock.now_ms())

    @property
    def _idle_interval_ms(self) -> int:
        return int(self.settings.static["metadata.max.idle.interval.ms"])

    def _wants_no_ops(self) -> bool:
        """Kafka writes one every half second; here only if somebody on the network follows the log.

        A NoOpRecord shows followers that the log is alive. A node by itself has none, and an idle disk is
        worth more to it than a log that grows.
        """
        return self.active and self._idle_interval_ms > 0 and self.raft.has_observers

    async def _write_no_op(self) -> None:
        idle_ms = self._clock.monotonic_ms() - self._runtime.last_append_ms
        if self._wants_no_ops() and idle_ms >= self._idle_interval_ms:
            await self._submit(lambda rules: ControllerResult(None, [NoOpRecord()]))


def _registration_request(
    node_id: int, incarnation_id: Uuid, listeners: Sequence[Endpoint]
) -> lifecycle.ControllerRegistrationRequest:
    return lifecycle.ControllerRegistrationRequest(
        controller_id=node_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        listeners=[
            lifecycle.Listener(
                name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol
            )
            for e in listeners
        ],
        features=[
            lifecycle.Feature(name=name, min_supported_version=r.min, max_supported_version=r.max)
            for name, r in SUPPORTED_FEATURES.items()
        ],
    )


async def _has_address(host: str) -> bool:
    """In a thread of the loop's own; Java's resolver takes an IPv6 address in brackets for one too."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return bool(await asyncio.get_running_loop().getaddrinfo(bare, None))
    except (OSError, ValueError):  # a name of more than 63 bytes in a row, or with a zero, is no host's
        return False


def _check_time(timeout_ms: int) -> None:
    """Who gives no time has run out of it before anything is done, as with Kafka."""
    if timeout_ms <= 0:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
