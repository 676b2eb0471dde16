import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeProducersOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.serialization.StringSerializer;

/** What Java's clients get of a topic with as many replicas as there are brokers: one line each. */
public class AdminAnswers {
    public static void main(String[] arguments) throws Exception {
        String topic = "by-id", bootstrap = arguments[0];
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            var nodes = admin.describeCluster().nodes().get();
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) nodes.size()))).all().get();
            Uuid id = null;
            for (int tries = 0; id == null; tries++) {
                try {
                    id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId();
                } catch (Exception notYet) {
                    if (tries == 100) throw notYet;
                    Thread.sleep(100);
                }
            }
            var found = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get();
            System.out.println("by its id: " + found.get(id).name());
            try {
                Uuid unknown = Uuid.randomUuid();
                admin.describeTopics(TopicCollection.ofTopicIds(List.of(unknown))).allTopicIds().get();
            } catch (Exception error) {
                System.out.println("by an unknown id: " + error.getCause().getClass().getSimpleName());
            }
            produce(bootstrap, topic);
            for (int tries = 0; end(admin, partition) < 4; tries++) { // the marker follows the commit
                if (tries == 100) throw new IllegalStateException("no marker came");
                Thread.sleep(100);
            }
            var newest = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).all().get();
            System.out.println("largest time: at " + newest.get(partition).offset());
            int told = 0;
            for (Node node : nodes) {
                var options = new DescribeProducersOptions().brokerId(node.id());
                told += admin.describeProducers(List.of(partition), options).all().get().size();
            }
            System.out.println("replicas that do not tell of producers: " + (nodes.size() - told));
            var specs = new TreeMap<String, OffsetSpec>();
            specs.put("earliest local", OffsetSpec.earliestLocal());
            specs.put("earliest pending upload", OffsetSpec.earliestPendingUpload());
            specs.put("latest tiered", OffsetSpec.latestTiered());
            for (var spec : specs.entrySet()) {
                var place = admin.listOffsets(Map.of(partition, spec.getValue())).all().get().get(partition);
                System.out.println(spec.getKey() + ": " + place.offset());
            }
            inPages(admin);
            System.out.println("fenced: " + admin.describeCluster(new DescribeClusterOptions()
                .includeFencedBrokers(true)).nodes().get().stream().filter(Node::isFenced).count());
            var pattern = new ListTransactionsOptions().filterOnTransactionalIdPattern("by-.d");
            var open = admin.listTransactions(pattern).all().get();
            System.out.println("transactions: " + open.stream().map(each -> each.transactionalId()).toList());
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
            System.out.println("deleted by its id");
        }
    }

    private static void inPages(Admin admin) throws Exception {
        admin.createTopics(List.of(new NewTopic("in-pages", 5, (short) 1))).all().get();
        var two = new DescribeTopicsOptions().partitionSizeLimitPerResponse(2);
        List<TopicPartitionInfo> rows = List.of();
        for (int tries = 0; rows.size() < 5; tries++) {
            try {
                rows = admin.describeTopics(List.of("in-pages"), two).allTopicNames().get().get("in-pages").partitions();
            } catch (Exception notYet) {
                if (tries == 100) throw notYet;
            }
            Thread.sleep(50);
        }
        System.out.println("in pages of two: " + rows.stream().map(TopicPartitionInfo::partition).toList()
            + ", eligible leaders: " + rows.get(4).elr() + ", known before: " + rows.get(4).lastKnownElr());
    }

    private static long end(Admin admin, TopicPartition partition) throws Exception {
        return admin.listOffsets(Map.of(partition, OffsetSpec.latest())).all().get().get(partition).offset();
    }

    private static void produce(String bootstrap, String topic) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", topic);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int number = 0; number < 3; number++) producer.send(new ProducerRecord<>(topic, "v" + number));
            producer.commitTransaction();
        }
    }
}
