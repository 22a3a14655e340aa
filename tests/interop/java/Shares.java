import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A share consumer that does what it is told: BOOTSTRAP GROUP TOPIC [NAME=VALUE ...], then a command a line:
 *   poll MS | ack TYPE PARTITION OFFSET | commit | lock | close
 * The answer to each ends with a line of a single dot.
 */
public class Shares {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("group.id", args[1]);
        for (int i = 3; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            config.put(pair[0], pair[1]);
        }
        Map<String, ConsumerRecord<String, String>> held = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaShareConsumer<String, String> consumer =
                 new KafkaShareConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[2]));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] words = line.split(" ");
                try {
                    if (words[0].equals("poll")) {
                        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(Long.parseLong(words[1])))) {
                            held.put(record.partition() + "/" + record.offset(), record);
                            System.out.println("record " + record.partition() + " " + record.offset() + " "
                                + record.deliveryCount().orElse((short) -1) + " " + record.value());
                        }
                    } else if (words[0].equals("ack")) {
                        consumer.acknowledge(held.get(words[2] + "/" + words[3]), AcknowledgeType.valueOf(words[1]));
                    } else if (words[0].equals("commit")) {
                        Map<TopicIdPartition, Optional<KafkaException>> outcomes = consumer.commitSync();
                        outcomes.forEach((partition, error) -> System.out.println("committed " + partition.partition() + " "
                            + error.map(e -> e.getClass().getSimpleName()).orElse("ok")));
                    } else if (words[0].equals("lock")) {
                        System.out.println("lock " + consumer.acquisitionLockTimeoutMs().orElse(-1));
                    } else if (words[0].equals("close")) {
                        break;
                    }
                } catch (Exception e) {
                    System.out.println("failed " + e.getClass().getSimpleName() + " " + e.getMessage());
                }
                System.out.println(".");
                System.out.flush();
            }
        }
        System.out.println("closed");
        System.out.println(".");
        System.out.flush();
    }
}
