import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** Members of the classic protocol are replaced by such of the consumer protocol, and back, while they read and commit. */
public class RolledGroup {
    static final Map<TopicPartition, Member> owners = new HashMap<>();
    static final Map<String, Integer> seen = new HashMap<>();
    static int twice = 0;

    /** A consumer with a thread of its own. */
    static class Member extends Thread implements ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        volatile boolean ends = false;

        Member(String bootstrap, String protocol, String assignor) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("group.id", "rolled");
            settings.put("group.protocol", protocol);
            if (protocol.equals("classic")) {
                settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
                settings.put("heartbeat.interval.ms", "200");
                settings.put("session.timeout.ms", "10000");
            }
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
            consumer = new KafkaConsumer<>(settings);
            consumer.subscribe(List.of("t"), this);
            start();
        }

        @Override
        public void run() {
            while (!ends) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                    synchronized (owners) {
                        seen.merge(record.value(), 1, Integer::sum);
                    }
                }
                commit();
            }
            consumer.close();
        }

        void commit() {
            try {
                consumer.commitSync();
            } catch (RuntimeException moves) { // the next poll joins, and commits
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            synchronized (owners) {
                for (TopicPartition partition : partitions) {
                    if (owners.put(partition, this) != null) {
                        twice++;
                    }
                }
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            synchronized (owners) {
                partitions.forEach(partition -> owners.remove(partition, this));
            }
        }
    }

    static void shared(int members) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (true) {
            synchronized (owners) {
                if (owners.size() == 6 && owners.values().stream().distinct().count() == members) {
                    System.out.println("shared among " + members);
                    return;
                }
            }
            if (System.nanoTime() > until) {
                throw new IllegalStateException("not shared among " + members + ": " + owners);
            }
            Thread.sleep(20);
        }
    }

    public static void main(String[] args) throws Exception {
        List<Member> members = new ArrayList<>();
        for (String protocol : List.of("classic", "consumer", "classic")) {
            for (int number = 0; number < 2; number++) {
                members.add(new Member(args[0], protocol, args[2]));
                shared(members.size());
                if (members.size() > 2) {
                    Member gone = members.remove(0);
                    gone.ends = true;
                    gone.join();
                    shared(members.size());
                }
            }
        }
        int records = Integer.parseInt(args[1]);
        while (true) {
            synchronized (owners) {
                if (seen.size() == records) {
                    break;
                }
            }
            Thread.sleep(20);
        }
        for (Member member : members) {
            member.ends = true;
            member.join();
        }
        long again = seen.values().stream().filter(times -> times > 1).count();
        System.out.println("twice owned: " + twice + ", read: " + seen.size() + ", again: " + again);
    }
}
