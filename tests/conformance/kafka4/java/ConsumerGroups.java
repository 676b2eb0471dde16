import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;

/** Two members of a group of the consumer protocol share the topic t-1 and read it; then one reads on alone. */
public class ConsumerGroups {
    static final Set<String> seen = new HashSet<>();

    public static void main(String[] args) throws Exception {
        int records = Integer.parseInt(args[1]);
        List<KafkaConsumer<String, String>> members = new ArrayList<>();
        members.add(member(args[0], "uniform"));
        members.get(0).subscribe(List.of("t-1"));
        members.add(member(args[0], "uniform"));
        members.get(1).subscribe(new SubscriptionPattern("t-[0-9]"));
        while (members.stream().anyMatch(member -> member.assignment().size() != 3)) {
            members.forEach(ConsumerGroups::poll);
        }
        System.out.println("shared: " + numbers(members));
        while (seen.size() < records) {
            members.forEach(ConsumerGroups::poll);
        }
        System.out.println("read: " + seen.size());
        System.out.println("ready");
        System.in.read();
        members.remove(0).close();
        while (members.get(0).assignment().size() != 6) {
            poll(members.get(0));
        }
        System.out.println("alone: " + numbers(members));
        members.get(0).close();
    }

    static KafkaConsumer<String, String> member(String bootstrap, String assignor) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", "java");
        settings.put("group.protocol", "consumer");
        settings.put("group.remote.assignor", assignor);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        return new KafkaConsumer<>(settings);
    }

    static void poll(KafkaConsumer<String, String> member) {
        for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(100))) {
            seen.add(record.value());
        }
        try {
            member.commitSync();
        } catch (CommitFailedException staleEpoch) { // the group has moved on: the next poll commits
        }
    }

    static Set<Integer> numbers(List<KafkaConsumer<String, String>> members) {
        Set<Integer> found = new TreeSet<>();
        members.forEach(member -> member.assignment().forEach(partition -> found.add(partition.partition())));
        return found;
    }
}
