import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A consumer's places, times and commits, and the rebalances of a classic group. */
final class ConsumerCalls extends Calls {
  private static final int PARTITIONS = 6, EACH = 50;

  ConsumerCalls(String bootstrap, String name, Checks checks) {
    super(bootstrap, name, checks);
  }

  @Override
  void all() throws Exception {
    try (Admin admin = Admin.create(settings(Map.of()))) {
      admin.createTopics(List.of(new NewTopic(name, PARTITIONS, (short) 3).configs(Map.of("retention.ms", "-1")))).all().get();
    }
    try (var producer = new KafkaProducer<>(settings(Map.of()), new StringSerializer(), new StringSerializer())) {
      for (int n = 0; n < EACH; n++)
        for (int p = 0; p < PARTITIONS; p++) producer.send(new ProducerRecord<>(name, p, 1000L * n, null, "v" + n));
    }
    places();
    commits();
    cooperative();
    staticMember();
  }

  private void places() {
    var partition = new TopicPartition(name, 2);
    try (var consumer = consumer(Map.of("auto.offset.reset", "none"))) {
      consumer.assign(List.of(partition));
      checks.fails("no offset", "NoOffsetForPartitionException", () -> consumer.poll(Duration.ofSeconds(30)));
      consumer.seek(partition, EACH + 5);
      checks.fails("an offset out of range", "OffsetOutOfRangeException", () -> polled(consumer));
      consumer.seek(partition, 17);
      checks.equal("seek", "v17", () -> polled(consumer).value());
      consumer.seekToEnd(List.of(partition));
      checks.equal("position", (long) EACH, () -> consumer.position(partition));
      consumer.seekToBeginning(List.of(partition));
      checks.equal("seekToBeginning", "v0", () -> polled(consumer).value());
      checks.equal("offsetsForTimes", 12L, () -> consumer.offsetsForTimes(Map.of(partition, 11_001L)).get(partition).offset());
      checks.equal("offsetsForTimes: late", null, () -> consumer.offsetsForTimes(Map.of(partition, 999_999L)).get(partition));
      checks.equal("beginningOffsets", Map.of(partition, 0L), () -> consumer.beginningOffsets(List.of(partition)));
      checks.equal("endOffsets", Map.of(partition, (long) EACH), () -> consumer.endOffsets(List.of(partition)));
      checks.equal("partitionsFor", PARTITIONS, () -> consumer.partitionsFor(name).size());
      checks.equal("listTopics", 3, () -> consumer.listTopics().get(name).stream().mapToInt((PartitionInfo p) -> p.replicas().length).max().getAsInt());
      consumer.seek(partition, 30);
      consumer.pause(List.of(partition));
      checks.equal("pause", 0, () -> consumer.poll(Duration.ofMillis(200)).count());
      consumer.resume(List.of(partition));
      checks.equal("resume", "v30", () -> polled(consumer).value());
      checks.equal("currentLag", true, () -> consumer.currentLag(partition).isPresent());
    }
  }

  private void commits() throws Exception {
    var partition = new TopicPartition(name, 1);
    try (var consumer = consumer(Map.of("group.id", name + "-commits", "enable.auto.commit", false))) {
      consumer.assign(List.of(partition));
      consumer.seek(partition, 3);
      consumer.commitSync(Map.of(partition, new OffsetAndMetadata(20, "twenty")));
      checks.equal("commitSync", new OffsetAndMetadata(20, "twenty"), () -> consumer.committed(Set.of(partition)).get(partition));
      var done = new CompletableFuture<Map<TopicPartition, OffsetAndMetadata>>();
      consumer.commitAsync(Map.of(partition, new OffsetAndMetadata(21)), (offsets, error) -> {
        if (error == null) done.complete(offsets); else done.completeExceptionally(error);
      });
      for (int tries = 0; !done.isDone() && tries < 600; tries++) consumer.poll(Duration.ofMillis(50));
      checks.equal("commitAsync", 21L, () -> done.get(1, TimeUnit.SECONDS).get(partition).offset());
    }
    try (var consumer = consumer(Map.of("group.id", name + "-commits", "auto.offset.reset", "none"))) {
      consumer.assign(List.of(partition));
      checks.equal("resumes at its commit", "v21", () -> polled(consumer).value());
    }
  }

  /** A second member gets its share, and takes nothing else from the first, which gets all back when that leaves. */
  private void cooperative() throws Exception {
    Map<String, Object> settings = Map.of("group.id", name + "-cooperative", "auto.offset.reset", "earliest",
        "partition.assignment.strategy", CooperativeStickyAssignor.class.getName(), "session.timeout.ms", 10_000);
    var revoked = new ArrayList<TopicPartition>();
    var lost = new ArrayList<TopicPartition>();
    var listener = new ConsumerRebalanceListener() {
      @Override
      public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

      @Override
      public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        revoked.addAll(partitions);
      }

      @Override
      public void onPartitionsLost(Collection<TopicPartition> partitions) {
        lost.addAll(partitions);
      }
    };
    var read = new ArrayList<String>();
    try (var first = consumer(settings)) {
      first.subscribe(List.of(name), listener);
      checks.becomes("the first member has all", PARTITIONS, () -> assigned(first, read).size());
      try (var second = consumer(settings)) {
        second.subscribe(Pattern.compile(Pattern.quote(name)));
        checks.becomes("each member has half", List.of(PARTITIONS / 2, PARTITIONS / 2), () ->
            List.of(assigned(first, read).size(), assigned(second, read).size()));
        checks.equal("only what moves is revoked", new TreeSet<>(names(second.assignment())), () -> new TreeSet<>(names(revoked)));
        checks.becomes("all is read", EACH * PARTITIONS, () -> {
          assigned(first, read);
          assigned(second, read);
          return new TreeSet<>(read).size();
        });
      }
      checks.becomes("the first member has all again", PARTITIONS, () -> assigned(first, read).size());
      checks.equal("nothing is lost", List.of(), () -> lost);
      checks.equal("each record was read once", EACH * PARTITIONS, read::size);
    }
  }

  /** A static member that is back has its partitions at once, and the other member sees no rebalance. */
  private void staticMember() throws Exception {
    Map<String, Object> one = Map.of("group.id", name + "-static", "group.instance.id", "one", "session.timeout.ms", 30_000);
    Map<String, Object> two = Map.of("group.id", name + "-static", "group.instance.id", "two", "session.timeout.ms", 30_000);
    var none = new ArrayList<String>();
    try (var first = consumer(one)) {
      first.subscribe(List.of(name));
      var second = consumer(two);
      second.subscribe(List.of(name));
      checks.becomes("static members share", List.of(PARTITIONS / 2, PARTITIONS / 2), () ->
          List.of(assigned(first, none).size(), assigned(second, none).size()));
      int generation = first.groupMetadata().generationId();
      var before = second.assignment();
      second.close();
      try (var back = consumer(two)) {
        back.subscribe(List.of(name));
        checks.becomes("a static member is back", before, () -> {
          assigned(back, none);
          return back.assignment();
        });
        assigned(first, none);
        checks.equal("no rebalance", generation, () -> first.groupMetadata().generationId());
      }
    }
  }

  private static Collection<String> names(Collection<TopicPartition> partitions) {
    return partitions.stream().map(TopicPartition::toString).toList();
  }

  private static Set<TopicPartition> assigned(KafkaConsumer<String, String> consumer, List<String> read) {
    consumer.poll(Duration.ofMillis(50)).forEach(record -> read.add(record.partition() + " " + record.offset()));
    return consumer.assignment();
  }

  private static ConsumerRecord<String, String> polled(KafkaConsumer<String, String> consumer) {
    return consumer.poll(Duration.ofSeconds(30)).iterator().next();
  }

  private KafkaConsumer<String, String> consumer(Map<String, Object> more) {
    var all = settings(Map.of("metadata.max.age.ms", 1000, "heartbeat.interval.ms", 300));
    all.putAll(more);
    return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
  }
}
