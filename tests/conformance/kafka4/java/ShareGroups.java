import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Two members of a share group read the topic t-1, each record once; Admin follows their group, and ends it. */
public class ShareGroups {
    static final String GROUP = "java";
    static final TopicPartition FIRST = new TopicPartition("t-1", 0);

    public static void main(String[] args) throws Exception {
        int records = Integer.parseInt(args[1]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, GROUP);
            ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
            AlterConfigOp set = new AlterConfigOp(earliest, AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(group, List.of(set))).all().get();
            System.out.println("settings of: " + new TreeSet<>(admin.listConfigResources(
                java.util.Set.of(ConfigResource.Type.GROUP), new org.apache.kafka.clients.admin.ListConfigResourcesOptions()
            ).all().get().stream().map(ConfigResource::name).toList()));
            List<KafkaShareConsumer<String, String>> members = List.of(member(args[0]), member(args[0]));
            List<String> seen = new ArrayList<>();
            while (seen.size() < records) {
                members.forEach(member -> poll(member, seen));
            }
            members.forEach(member -> member.commitSync(Duration.ofSeconds(20)));
            System.out.println("read: " + seen.size() + ", each once: " + (new TreeSet<>(seen).size() == records));
            ShareGroupDescription found = admin.describeShareGroups(List.of(GROUP)).describedGroups().get(GROUP).get();
            System.out.println("members: " + found.members().size() + ", " + found.groupState());
            System.out.println("left: " + lags(admin));
            System.out.println("ready");
            System.in.read();
            members.forEach(member -> member.close(Duration.ofSeconds(20)));
            admin.alterShareGroupOffsets(GROUP, Map.of(FIRST, 4L)).all().get();
            System.out.println("altered: " + lags(admin));
            List<String> again = new ArrayList<>();
            try (KafkaShareConsumer<String, String> one = member(args[0])) {
                while (again.size() < records / 2 - 4) {
                    poll(one, again);
                }
                one.commitSync(Duration.ofSeconds(20));
            }
            System.out.println("again: " + again.size());
            admin.deleteShareGroupOffsets(GROUP, java.util.Set.of("t-1")).all().get();
            System.out.println("deleted: " + lags(admin));
            admin.deleteShareGroups(List.of(GROUP)).all().get();
            System.out.println("groups: " + admin.listGroups().all().get().stream().map(each -> each.groupId()).toList());
        }
    }

    static Map<TopicPartition, Object> lags(Admin admin) throws Exception {
        Map<TopicPartition, Object> found = new TreeMap<>((a, b) -> a.toString().compareTo(b.toString()));
        Map<TopicPartition, SharePartitionOffsetInfo> offsets =
            admin.listShareGroupOffsets(Map.of(GROUP, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(GROUP).get();
        offsets.forEach((partition, info) -> found.put(partition, info == null ? "none" : info.lag().orElse(-1L)));
        return found;
    }

    static KafkaShareConsumer<String, String> member(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", GROUP);
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        KafkaShareConsumer<String, String> made = new KafkaShareConsumer<>(settings);
        made.subscribe(List.of("t-1"));
        return made;
    }

    static void poll(KafkaShareConsumer<String, String> member, List<String> seen) {
        for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(100))) {
            seen.add(record.value());
        }
    }
}
