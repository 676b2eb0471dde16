import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Arguments: bootstrap, name of its topics. What `Clients` calls, and the methods of Admin that clients 4.4 have besides. */
public class NewerClients {
  public static void main(String[] given) throws Exception {
    Clients.main(given);
    String bootstrap = given[0], name = given[1], group = name + "-newer";
    var checks = new Checks();
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
      Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", group);
      try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
        consumer.subscribe(List.of(name));
        while (consumer.assignment().isEmpty()) consumer.poll(java.time.Duration.ofMillis(100));
        checks.equal("listGroups", "[Optional[Classic], Optional[Stable]]", () -> admin.listGroups().all().get().stream()
            .filter(each -> each.groupId().equals(group)).map(each -> List.of(each.type(), each.groupState())).findFirst().get().toString());
        checks.equal("describeClassicGroups", 1, () -> admin.describeClassicGroups(List.of(group)).all().get().get(group).members().size());
      }
      checks.fails("describeConsumerGroups: unknown", "GroupIdNotFoundException", () -> admin.describeConsumerGroups(List.of("unknown")).all().get());
      try (var producer = new AdminCalls(bootstrap, name, admin, checks).begun(name + "-c")) {
        admin.forceTerminateTransaction(name + "-c").result().get();
        checks.becomes("forceTerminateTransaction", true, () -> admin.describeTransactions(List.of(name + "-c")).all().get()
            .get(name + "-c").topicPartitions().isEmpty());
      }
      var metric = admin.metrics().values().stream().filter(each -> each instanceof org.apache.kafka.common.metrics.KafkaMetric).findFirst();
      admin.registerMetricForSubscription((org.apache.kafka.common.metrics.KafkaMetric) metric.get());
      admin.unregisterMetricFromSubscription((org.apache.kafka.common.metrics.KafkaMetric) metric.get());
    }
  }
}
