import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.TreeMap;

import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.AlterConfigPolicy;
import org.apache.kafka.server.policy.CreateTopicPolicy;

/** Policies that write down what they are asked, and object in several ways; policies.py does the same for Ottla. */
public class Policies {
    static void write(String line) {
        Path log = Path.of(System.getenv("OTTLA_TEST_POLICIES"), "apache.asked");
        try {
            Files.writeString(log, line + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException e) {
            throw new RuntimeException(e);
        }
    }

    static void object(String word) {
        if (word.contains("refused")) throw new PolicyViolationException("the policy does not like " + word);
        if (word.contains("config")) throw new ConfigException("a configuration error");
        if (word.contains("factor")) throw new InvalidReplicationFactorException("an error of Kafka's own");
        if (word.contains("broken")) throw new IllegalStateException("a bug in the policy");
    }

    public static class Create implements CreateTopicPolicy {
        public void configure(Map<String, ?> configs) {
            write("configure create " + configs.get("broker.rack"));
        }

        public void validate(RequestMetadata request) {
            Object assignments = request.replicasAssignments() == null ? null : new TreeMap<>(request.replicasAssignments());
            write("create " + request.topic() + " " + request.numPartitions() + " " + request.replicationFactor()
                + " " + assignments + " " + new TreeMap<>(request.configs()));
            object(request.topic());
        }

        public void close() {
            write("close create");
        }
    }

    public static class Alter implements AlterConfigPolicy {
        public void configure(Map<String, ?> configs) {
            write("configure alter " + configs.get("broker.rack"));
        }

        public void validate(RequestMetadata request) {
            write("alter " + request.resource().type().id() + " " + request.resource().name() + " "
                + new TreeMap<>(request.configs()));
            for (String value : request.configs().values()) {
                if (value != null) object(value);
            }
        }

        public void close() {
            write("close alter");
        }
    }
}
