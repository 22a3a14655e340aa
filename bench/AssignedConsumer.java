// Reads a number of records from every partition of a topic with assign(), and says how long it took.
// ConsumerPerformance ends before its JVM is warm; this reads the same three times in one.
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class AssignedConsumer {
    public static void main(String[] args) {
        String topic = args[1];
        long wanted = Long.parseLong(args[2]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("max.poll.records", "5000");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(p -> partitions.add(new TopicPartition(topic, p.partition())));
            consumer.assign(partitions);
            for (int round = 0; round < 3; round++) {
                consumer.seekToBeginning(partitions);
                long begin = System.nanoTime(), seen = 0, bytes = 0;
                while (seen < wanted) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(5));
                    if (records.isEmpty()) {
                        System.err.println("only " + seen + " records");
                        System.exit(1);
                    }
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        seen++;
                        bytes += record.serializedValueSize();
                    }
                }
                double seconds = (System.nanoTime() - begin) / 1e9;
                System.out.printf("%d records %.3f seconds %.1f records/s %.2f MB/s%n", seen, seconds,
                    seen / seconds, bytes / seconds / 1e6);
            }
        }
    }
}
