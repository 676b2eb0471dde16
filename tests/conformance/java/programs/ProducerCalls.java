import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What producers write, with each codec and in transactions, is what consumers of each isolation level read. */
final class ProducerCalls extends Calls {
  private static final int COUNT = 400, LARGE_BYTES = 700_000;

  ProducerCalls(String bootstrap, String name, Checks checks) {
    super(bootstrap, name, checks);
  }

  @Override
  void all() throws Exception {
    try (var admin = org.apache.kafka.clients.admin.Admin.create(settings(Map.of()))) {
      admin.createTopics(List.of("none", "gzip", "snappy", "lz4", "zstd", "in", "out", "small").stream().map(kind ->
          new org.apache.kafka.clients.admin.NewTopic(name + "-" + kind, 1, (short) 3)
              .configs(kind.equals("small") ? Map.of("max.message.bytes", "2000") : Map.of("retention.ms", "-1"))).toList()).all().get();
    }
    for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) written(codec);
    tooLarge();
    transactions();
    fenced();
  }

  /** Records with and without keys, values and headers, some of them large, in few and in many batches. */
  private void written(String codec) throws Exception {
    var partition = new TopicPartition(name + "-" + codec, 0);
    var records = new ArrayList<ProducerRecord<byte[], byte[]>>();
    var dice = new Random(codec.hashCode());
    for (int n = 0; n < COUNT; n++) {
      byte[] value = n % 100 == 1 ? new byte[LARGE_BYTES] : n % 7 == 0 ? null : ("value " + n).getBytes(StandardCharsets.UTF_8);
      if (n % 100 == 1) dice.nextBytes(value);
      byte[] key = n % 3 == 0 ? null : n % 3 == 1 ? new byte[0] : ("key " + n).getBytes(StandardCharsets.UTF_8);
      List<Header> headers = n % 4 == 0 ? List.of()
          : List.of(new RecordHeader("h", null), new RecordHeader("h", new byte[] {(byte) n}), new RecordHeader("ü", new byte[0]));
      records.add(new ProducerRecord<>(partition.topic(), 0, 1_700_000_000_000L + n, key, value, headers));
    }
    var sent = new ArrayList<Future<RecordMetadata>>();
    try (var producer = producer(Map.of("compression.type", codec, "linger.ms", 20, "batch.size", 200_000, "enable.idempotence", true))) {
      for (var record : records) sent.add(producer.send(record));
      producer.flush();
    }
    checks.equal("offsets: " + codec, true, () -> {
      for (int n = 0; n < COUNT; n++) if (sent.get(n).get().offset() != n) return "the record " + n + " at " + sent.get(n).get().offset();
      return true;
    });
    var read = read(partition, "read_uncommitted");
    checks.equal("records: " + codec, true, () -> {
      for (int n = 0; n < COUNT; n++) if (!same(records.get(n), read.get(n))) return "another record at " + n;
      return read.size() == COUNT;
    });
  }

  private static boolean same(ProducerRecord<byte[], byte[]> sent, ConsumerRecord<byte[], byte[]> read) {
    return Arrays.equals(sent.key(), read.key()) && Arrays.equals(sent.value(), read.value())
        && sent.timestamp() == read.timestamp() && List.of(sent.headers().toArray()).equals(List.of(read.headers().toArray()));
  }

  private void tooLarge() {
    try (var producer = producer(Map.of())) {
      checks.fails("a record above max.message.bytes", "RecordTooLargeException", () ->
          producer.send(new ProducerRecord<>(name + "-small", new byte[5000])).get());
    }
  }

  /** Reads, writes and commits offsets in transactions, of which each second is aborted at first. */
  private void transactions() throws Exception {
    TopicPartition in = new TopicPartition(name + "-in", 0), out = new TopicPartition(name + "-out", 0);
    try (var producer = producer(Map.of("transactional.id", name, "compression.type", "lz4"))) {
      producer.initTransactions();
      for (int n = 0; n < 10; n++) {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(in.topic(), value("in " + n))).get(); // what is aborted before it is sent is not written
        if (n % 2 == 1) producer.abortTransaction(); else producer.commitTransaction();
      }
    }
    checks.equal("committed records", List.of("in 0", "in 2", "in 4", "in 6", "in 8"), () -> values(read(in, "read_committed")));
    checks.equal("all records", 10, () -> read(in, "read_uncommitted").size());
    try (var consumer = consumer(Map.of("group.id", name, "isolation.level", "read_committed"));
        var producer = producer(Map.of("transactional.id", name + "-copy"))) {
      producer.initTransactions();
      consumer.subscribe(List.of(in.topic()));
      int copied = 0;
      for (int tries = 0; copied < 5 && tries < 600; tries++) {
        for (var record : consumer.poll(Duration.ofMillis(100))) {
          for (boolean aborts : new boolean[] {true, false}) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(out.topic(), value("copy of " + new String(record.value(), StandardCharsets.UTF_8))));
            var offset = Map.of(in, new OffsetAndMetadata(record.offset() + (aborts ? 100 : 1)));
            producer.sendOffsetsToTransaction(offset, consumer.groupMetadata());
            if (aborts) producer.abortTransaction(); else producer.commitTransaction();
          }
          copied++;
        }
      }
      // Each record has a marker behind it.
      checks.equal("offsets of transactions", 17L, () -> consumer.committed(java.util.Set.of(in)).get(in).offset());
    }
    checks.equal("copied records", List.of("copy of in 0", "copy of in 2", "copy of in 4", "copy of in 6", "copy of in 8"), () ->
        values(read(out, "read_committed")));
  }

  private void fenced() {
    var id = Map.<String, Object>of("transactional.id", name + "-fenced");
    try (var first = producer(id); var second = producer(id)) {
      first.initTransactions();
      first.beginTransaction();
      second.initTransactions();
      checks.fails("a fenced producer", "ProducerFencedException", () -> {
        try {
          first.send(new ProducerRecord<>(name + "-out", value("late"))).get();
          first.commitTransaction();
        } catch (java.util.concurrent.ExecutionException error) {
          if (!(error.getCause() instanceof org.apache.kafka.common.errors.InvalidProducerEpochException)) throw error;
          first.abortTransaction();
        }
        return "committed";
      });
    }
  }

  /** All records up to the end that this level sees. */
  private List<ConsumerRecord<byte[], byte[]>> read(TopicPartition partition, String isolation) {
    var found = new ArrayList<ConsumerRecord<byte[], byte[]>>();
    try (var consumer = consumer(Map.of("isolation.level", isolation))) {
      consumer.assign(List.of(partition));
      consumer.seekToBeginning(List.of(partition));
      long end = consumer.endOffsets(List.of(partition)).get(partition);
      for (int tries = 0; consumer.position(partition) < end && tries < 600; tries++)
        consumer.poll(Duration.ofMillis(100)).forEach(found::add);
    }
    return found;
  }

  private static List<String> values(List<ConsumerRecord<byte[], byte[]>> records) {
    return records.stream().map(record -> new String(record.value(), StandardCharsets.UTF_8)).toList();
  }

  private static byte[] value(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
    return new KafkaProducer<>(settings(more), new ByteArraySerializer(), new ByteArraySerializer());
  }

  private KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
    var all = settings(more);
    all.put("auto.offset.reset", "earliest");
    return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }
}
