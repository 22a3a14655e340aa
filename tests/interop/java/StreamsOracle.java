import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.TreeSet;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.generated.StreamsGroupTargetAssignmentMemberKey;
import org.apache.kafka.coordinator.group.generated.StreamsGroupTopologyValue;
import org.apache.kafka.coordinator.group.streams.CurrentAssignmentBuilder;
import org.apache.kafka.coordinator.group.streams.MemberState;
import org.apache.kafka.coordinator.group.streams.StreamsGroup;
import org.apache.kafka.coordinator.group.streams.StreamsGroupMember;
import org.apache.kafka.coordinator.group.streams.StreamsTopology;
import org.apache.kafka.coordinator.group.streams.TargetAssignmentBuilder;
import org.apache.kafka.coordinator.group.streams.TasksTuple;
import org.apache.kafka.coordinator.group.streams.TasksTupleWithEpochs;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredInternalTopic;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredSubtopology;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredTopology;
import org.apache.kafka.coordinator.group.streams.topics.InternalTopicManager;
import org.apache.kafka.timeline.SnapshotRegistry;
import org.apache.kafka.timeline.TimelineHashMap;

import org.slf4j.helpers.NOPLogger;

/** Asks Apache's own task assignor, topic configuration and reconciliation: one question and one answer a line, as JSON. */
public class StreamsOracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode question = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            try {
                switch (question.get("op").asText()) {
                    case "assign" -> assign(question, answer);
                    case "configure" -> configure(question, answer);
                    default -> step(question, answer);
                }
            } catch (RuntimeException error) {
                answer.removeAll();
                answer.put("error", error.getClass().getSimpleName());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    // ---- the target assignment ----

    private static void assign(JsonNode question, ObjectNode answer) {
        SnapshotRegistry registry = new SnapshotRegistry(new LogContext());
        TimelineHashMap<String, StreamsGroupMember> members = new TimelineHashMap<>(registry, 0);
        Map<String, TasksTuple> target = new HashMap<>();
        for (JsonNode member : question.get("members")) {
            members.put(member.get("id").asText(), member(member));
            if (member.has("active")) {
                target.put(member.get("id").asText(), tasks(member));
            }
        }
        SortedMap<String, ConfiguredSubtopology> subtopologies = new TreeMap<>();
        question.get("subtopologies").properties().forEach(entry -> {
            Map<String, ConfiguredInternalTopic> changelogs = entry.getValue().get("stateful").asBoolean()
                ? Map.of("c", new ConfiguredInternalTopic("c", 1, Optional.empty(), Map.of())) : Map.of();
            subtopologies.put(entry.getKey(), new ConfiguredSubtopology(
                entry.getValue().get("tasks").asInt(), Set.of(), Map.of(), Set.of(), changelogs));
        });
        TargetAssignmentBuilder builder = new TargetAssignmentBuilder("g", 2, new StickyTaskAssignor(),
                Map.of("num.standby.replicas", question.get("standbys").asText()))
            .withTime(Time.SYSTEM)
            .withMembers(members)
            .withTargetAssignment(target)
            .withTopology(new ConfiguredTopology(0, 0, Optional.of(subtopologies), Map.of(), Optional.empty()));
        JsonNode joining = question.get("joining");
        if (!joining.isNull()) {
            builder.addOrUpdateMember(joining.get("id").asText(), member(joining));
        }
        TargetAssignmentBuilder.TargetAssignmentResult result = builder.build();
        ObjectNode told = answer.putObject("members");
        result.targetAssignment().forEach((id, assigned) -> {
            ObjectNode row = told.putObject(id);
            write(row.putObject("active"), assigned.activeTasks());
            write(row.putObject("standby"), assigned.standbyTasks());
        });
        ArrayNode order = answer.putArray("order");
        for (CoordinatorRecord record : result.records()) {
            if (record.key() instanceof StreamsGroupTargetAssignmentMemberKey key) {
                order.add(key.memberId());
            }
        }
    }

    private static StreamsGroupMember member(JsonNode member) {
        return StreamsGroupMember.Builder.withDefaults(member.get("id").asText())
            .setProcessId(member.get("process").asText())
            .build();
    }

    // ---- the internal topics ----

    private static void configure(JsonNode question, ObjectNode answer) {
        StreamsGroupTopologyValue value = new StreamsGroupTopologyValue().setEpoch(0);
        for (JsonNode said : question.get("subtopologies")) {
            List<StreamsGroupTopologyValue.CopartitionGroup> groups = new ArrayList<>();
            for (JsonNode group : said.get("together")) {
                groups.add(new StreamsGroupTopologyValue.CopartitionGroup()
                    .setSourceTopics(shorts(group.get(0)))
                    .setRepartitionSourceTopics(shorts(group.get(1))));
            }
            value.subtopologies().add(new StreamsGroupTopologyValue.Subtopology()
                .setSubtopologyId(said.get("id").asText())
                .setSourceTopics(texts(said.get("sources")))
                .setRepartitionSinkTopics(texts(said.get("sinks")))
                .setRepartitionSourceTopics(infos(said.get("repartition")))
                .setStateChangelogTopics(infos(said.get("changelogs")))
                .setCopartitionGroups(groups));
        }
        Map<String, Integer> topics = new HashMap<>();
        question.get("topics").properties().forEach(topic -> topics.put(topic.getKey(), topic.getValue().asInt()));
        ConfiguredTopology configured = InternalTopicManager.configureTopics(
            NOPLogger.NOP_LOGGER, "g", "m", 0, StreamsTopology.fromRecord(value), new Image(topics), Time.SYSTEM);
        if (configured.topicConfigurationException().isPresent()) {
            answer.put("status", configured.topicConfigurationException().get().status().code());
        } else {
            answer.putNull("status");
        }
        ObjectNode subtopologies = answer.putObject("subtopologies");
        configured.subtopologies().ifPresent(all -> all.forEach((id, subtopology) -> {
            ObjectNode row = subtopologies.putObject(id);
            row.put("tasks", subtopology.numberOfTasks());
            ObjectNode counts = row.putObject("internal");
            subtopology.repartitionSourceTopics().forEach((name, topic) -> counts.put(name, topic.numberOfPartitions()));
            subtopology.stateChangelogTopics().forEach((name, topic) -> counts.put(name, topic.numberOfPartitions()));
        }));
        ArrayNode create = answer.putArray("create");
        configured.internalTopicsToBeCreated().forEach((name, topic) ->
            create.add(name + " " + topic.numPartitions() + " " + topic.replicationFactor()));
    }

    private static List<StreamsGroupTopologyValue.TopicInfo> infos(JsonNode said) {
        List<StreamsGroupTopologyValue.TopicInfo> infos = new ArrayList<>();
        for (JsonNode topic : said) {
            infos.add(new StreamsGroupTopologyValue.TopicInfo()
                .setName(topic.get(0).asText()).setPartitions(topic.get(1).asInt()));
        }
        return infos;
    }

    private static List<String> texts(JsonNode said) {
        List<String> texts = new ArrayList<>();
        said.forEach(text -> texts.add(text.asText()));
        return texts;
    }

    private static List<Short> shorts(JsonNode said) {
        List<Short> numbers = new ArrayList<>();
        said.forEach(number -> numbers.add((short) number.asInt()));
        return numbers;
    }

    private record Image(Map<String, Integer> topics) implements CoordinatorMetadataImage {
        @Override
        public Set<Uuid> topicIds() {
            return Set.of();
        }

        @Override
        public Set<String> topicNames() {
            return topics.keySet();
        }

        @Override
        public Optional<TopicMetadata> topicMetadata(String name) {
            return Optional.ofNullable(topics.get(name)).map(count -> new Topic(name, count));
        }

        @Override
        public Optional<TopicMetadata> topicMetadata(Uuid id) {
            return Optional.empty();
        }

        @Override
        public CoordinatorMetadataDelta emptyDelta() {
            return CoordinatorMetadataDelta.EMPTY;
        }

        @Override
        public long version() {
            return 0;
        }

        @Override
        public boolean isEmpty() {
            return topics.isEmpty();
        }
    }

    private record Topic(String name, int partitionCount) implements CoordinatorMetadataImage.TopicMetadata {
        @Override
        public Uuid id() {
            return Uuid.ZERO_UUID;
        }

        @Override
        public List<String> partitionRacks(int partition) {
            return List.of();
        }
    }

    // ---- reconciliation ----

    private static void step(JsonNode question, ObjectNode answer) {
        StreamsGroup group = new StreamsGroup(new LogContext(), new SnapshotRegistry(new LogContext()), "g");
        for (JsonNode member : question.get("members")) {
            group.updateMember(new StreamsGroupMember.Builder(member(member))
                .setMemberEpoch(member.get("epoch").asInt())
                .setPreviousMemberEpoch(member.get("previous").asInt())
                .setState(MemberState.fromValue((byte) member.get("state").asInt()))
                .setAssignedTasks(held(member.get("assigned")))
                .setTasksPendingRevocation(held(member.get("revoked")))
                .build());
        }
        JsonNode owned = question.get("owned");
        StreamsGroupMember after = new CurrentAssignmentBuilder(group.getMemberOrThrow(question.get("id").asText()))
            .withTargetAssignment(question.get("epoch").asInt(), tasks(question.get("target")))
            .withCurrentActiveTaskProcessId(group::currentActiveTaskProcessId)
            .withCurrentStandbyTaskProcessIds(group::currentStandbyTaskProcessIds)
            .withCurrentWarmupTaskProcessIds(group::currentWarmupTaskProcessIds)
            .withOwnedAssignment(owned.isNull() ? null : tasks(owned))
            .build();
        answer.put("epoch", after.memberEpoch());
        answer.put("previous", after.previousMemberEpoch());
        answer.put("state", after.state().value());
        write(answer.putObject("assigned"), after.assignedTasks());
        write(answer.putObject("revoked"), after.tasksPendingRevocation());
    }

    private static TasksTupleWithEpochs held(JsonNode said) {
        Map<String, Map<Integer, Integer>> active = new HashMap<>();
        said.get("active").properties().forEach(entry -> {
            Map<Integer, Integer> epochs = new HashMap<>();
            entry.getValue().properties().forEach(e -> epochs.put(Integer.parseInt(e.getKey()), e.getValue().asInt()));
            active.put(entry.getKey(), epochs);
        });
        return new TasksTupleWithEpochs(active, ids(said.get("standby")), ids(said.get("warmup")));
    }

    private static TasksTuple tasks(JsonNode said) {
        return new TasksTuple(ids(said.get("active")), ids(said.get("standby")),
            said.has("warmup") ? ids(said.get("warmup")) : Map.of());
    }

    private static Map<String, Set<Integer>> ids(JsonNode said) {
        Map<String, Set<Integer>> ids = new HashMap<>();
        said.properties().forEach(entry -> {
            Set<Integer> partitions = new HashSet<>();
            entry.getValue().forEach(partition -> partitions.add(partition.asInt()));
            ids.put(entry.getKey(), partitions);
        });
        return ids;
    }

    private static void write(ObjectNode where, TasksTupleWithEpochs held) {
        ObjectNode active = where.putObject("active");
        held.activeTasksWithEpochs().forEach((subtopology, epochs) -> {
            ObjectNode row = active.putObject(subtopology);
            epochs.forEach((partition, epoch) -> row.put(partition.toString(), epoch));
        });
        write(where.putObject("standby"), held.standbyTasks());
        write(where.putObject("warmup"), held.warmupTasks());
    }

    private static void write(ObjectNode where, Map<String, Set<Integer>> tasks) {
        tasks.forEach((subtopology, partitions) -> {
            ArrayNode row = where.putArray(subtopology);
            new TreeSet<>(partitions).forEach(row::add);
        });
    }
}
