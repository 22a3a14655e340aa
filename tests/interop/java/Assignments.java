import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

import com.dynatrace.hash4j.hashing.HashStream64;
import com.dynatrace.hash4j.hashing.Hashing;

/**
 * Asks Apache's own assignors, and the hash they compute of a topic. One question is some lines and an empty one:
 *   assign uniform|range HOMOGENEOUS|HETEROGENEOUS, then "topic ID N" and "member ID INSTANCE|- TOPICS|- HELD|-"
 *   hash ID NAME N RACKS|-
 * with lists by commas, and held partitions as ID:1.2.3 by semicolons. The answer ends with an empty line too.
 */
public class Assignments {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        List<String[]> lines = new ArrayList<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (!line.isEmpty()) {
                lines.add(line.split(" "));
                continue;
            }
            answer(lines);
            System.out.println();
            System.out.flush();
            lines.clear();
        }
    }

    private static void answer(List<String[]> lines) {
        String[] first = lines.get(0);
        if (first[0].equals("hash")) {
            String[] racks = split(first[4], ",");
            System.out.println(hash(Uuid.fromString(first[1]), first[2], Integer.parseInt(first[3]), racks));
            return;
        }
        Map<Uuid, Integer> topics = new HashMap<>();
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (String[] line : lines.subList(1, lines.size())) {
            if (line[0].equals("topic")) {
                topics.put(Uuid.fromString(line[1]), Integer.parseInt(line[2]));
            } else {
                addMember(line, members, owners);
            }
        }
        ConsumerGroupPartitionAssignor assignor =
            first[1].equals("uniform") ? new UniformAssignor() : new RangeAssignor();
        GroupAssignment assigned = assignor.assign(
            new GroupSpecImpl(Collections.unmodifiableMap(members), SubscriptionType.valueOf(first[2]), owners),
            new Described(topics)
        );
        for (Map.Entry<String, MemberAssignment> entry : assigned.members().entrySet()) {
            System.out.println(entry.getKey() + " " + held(entry.getValue().partitions()));
        }
    }

    private static void addMember(
        String[] line,
        Map<String, MemberSubscriptionAndAssignmentImpl> members,
        Map<Uuid, Map<Integer, String>> owners
    ) {
        // As the coordinator has it: the topics in the order of a set of their names.
        Set<Uuid> subscribed = new LinkedHashSet<>();
        for (String id : new HashSet<>(List.of(split(line[3], ",")))) subscribed.add(Uuid.fromString(id));
        Map<Uuid, Set<Integer>> held = new HashMap<>();
        for (String part : split(line[4], ";")) {
            Uuid id = Uuid.fromString(part.split(":")[0]);
            List<Integer> numbers = new ArrayList<>();
            for (String number : part.split(":")[1].split("\\.")) numbers.add(Integer.parseInt(number));
            held.put(id, new HashSet<>(numbers));
            for (Integer number : numbers) owners.computeIfAbsent(id, __ -> new HashMap<>()).put(number, line[1]);
        }
        Optional<String> instance = line[2].equals("-") ? Optional.empty() : Optional.of(line[2]);
        members.put(line[1], new MemberSubscriptionAndAssignmentImpl(
            Optional.empty(), instance, subscribed, new Assignment(held)));
    }

    private static String[] split(String text, String by) {
        return text.equals("-") ? new String[0] : text.split(by);
    }

    private static String held(Map<Uuid, Set<Integer>> partitions) {
        List<String> parts = new ArrayList<>();
        partitions.forEach((id, numbers) -> {
            List<String> texts = new ArrayList<>();
            for (Integer number : numbers) texts.add(number.toString());
            parts.add(id + ":" + String.join(".", texts));
        });
        return parts.isEmpty() ? "-" : String.join(";", new TreeSet<>(parts));
    }

    private static long hash(Uuid id, String name, int partitions, String[] racks) {
        HashStream64 hasher = Hashing.xxh3_64().hashStream();
        hasher = hasher.putByte((byte) 0)
            .putLong(id.getMostSignificantBits())
            .putLong(id.getLeastSignificantBits())
            .putString(name)
            .putInt(partitions);
        for (int i = 0; i < partitions; i++) {
            hasher = hasher.putInt(i);
            for (String rack : racks) hasher = hasher.putInt(rack.length()).putString(rack);
        }
        return hasher.getAsLong();
    }

    private record Described(Map<Uuid, Integer> topics) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topicId) {
            return topics.getOrDefault(topicId, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topicId, int partition) {
            return Set.of();
        }
    }
}
