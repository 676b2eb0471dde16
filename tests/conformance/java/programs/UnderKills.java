import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;

/**
 * Arguments: bootstrap, topic that an idempotent producer numbers, topic that transactions copy it to, each of three
 * partitions. Prints `copied N` as it goes; ends some time after its standard input does, with what it reads of both.
 */
public class UnderKills {
  private static final int PARTITIONS = 3;
  private static final String BOOTSTRAP = "bootstrap.servers";

  public static void main(String[] given) throws Exception {
    String bootstrap = given[0], in = given[1], out = given[2];
    var written = new AtomicInteger();
    var isOver = new AtomicBoolean();
    var writer = new Thread(() -> write(bootstrap, in, written, isOver));
    writer.start();
    var copier = new Thread(() -> copy(bootstrap, in, out, written, isOver));
    copier.start();
    while (System.in.read() >= 0) {}
    isOver.set(true);
    writer.join();
    copier.join();
    for (String topic : List.of(in, out)) {
      for (int p = 0; p < PARTITIONS; p++) {
        String is = read(bootstrap, new TopicPartition(topic, p), written.get());
        System.out.println((is.isEmpty() ? "ok " : "bad ") + topic + "-" + p + is);
      }
    }
    System.out.println("done " + PARTITIONS * written.get());
  }

  /** Number records in each partition until it is over, 200 a second. */
  private static void write(String bootstrap, String topic, AtomicInteger written, AtomicBoolean isOver) {
    Map<String, Object> settings = Map.of(BOOTSTRAP, bootstrap, "linger.ms", 5, "compression.type", "lz4");
    try (var producer = new KafkaProducer<>(settings, new IntegerSerializer(), new IntegerSerializer())) {
      while (!isOver.get()) {
        for (int p = 0; p < PARTITIONS; p++) {
          producer.send(new ProducerRecord<>(topic, p, null, written.get()), (metadata, error) -> {
            if (error != null) System.out.println("bad a record was not written: " + error);
          });
        }
        written.incrementAndGet();
        Thread.sleep(15);
      }
    } catch (Exception error) {
      System.out.println("bad the writer died: " + error);
    }
  }

  /** Copy in transactions, some of which are aborted at first, until all that was written is copied. */
  private static void copy(String bootstrap, String in, String out, AtomicInteger written, AtomicBoolean isOver) {
    var settings = new HashMap<String, Object>(Map.of(BOOTSTRAP, bootstrap, "group.id", in, "auto.offset.reset", "earliest",
        "enable.auto.commit", false, "isolation.level", "read_committed", "heartbeat.interval.ms", 500, "max.poll.records", 100));
    try (var consumer = new KafkaConsumer<>(settings, new IntegerDeserializer(), new IntegerDeserializer());
        var producer = new KafkaProducer<>(Map.of(BOOTSTRAP, bootstrap, "transactional.id", out), new IntegerSerializer(), new IntegerSerializer())) {
      producer.initTransactions();
      consumer.subscribe(List.of(in));
      int copied = 0;
      for (int turn = 0; !isOver.get() || copied < PARTITIONS * written.get(); turn++) {
        var records = consumer.poll(Duration.ofMillis(100));
        if (records.isEmpty()) continue;
        boolean isCommitted = false;
        try {
          producer.beginTransaction();
          var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
          for (var record : records) {
            producer.send(new ProducerRecord<>(out, record.partition(), null, record.value()));
            offsets.put(new TopicPartition(in, record.partition()), new OffsetAndMetadata(record.offset() + 1));
          }
          producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
          if (turn % 5 == 4) {
            producer.flush();
            producer.abortTransaction();
          } else {
            commit(producer);
            isCommitted = true;
          }
        } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
          throw error;
        } catch (KafkaException error) {
          System.out.println("again because of " + error);
          producer.abortTransaction();
        }
        if (isCommitted) {
          copied += records.count();
          System.out.println("copied " + copied);
        } else {
          consumer.committed(consumer.assignment()).forEach((partition, offset) ->
              consumer.seek(partition, offset == null ? 0 : offset.offset()));
        }
      }
    } catch (Exception error) {
      System.out.println("bad the copier died: " + error);
    }
  }

  private static void commit(KafkaProducer<?, ?> producer) {
    while (true) {
      try {
        producer.commitTransaction();
        return;
      } catch (TimeoutException error) { // it may go on
        System.out.println("again because of " + error);
      }
    }
  }

  /** Is what is committed the numbers from 0 on, each once and in order? Nothing, or the difference. */
  private static String read(String bootstrap, TopicPartition partition, int count) {
    Map<String, Object> settings = Map.of(BOOTSTRAP, bootstrap, "isolation.level", "read_committed");
    var found = new ArrayList<Integer>();
    try (var consumer = new KafkaConsumer<>(settings, new IntegerDeserializer(), new IntegerDeserializer())) {
      consumer.assign(List.of(partition));
      consumer.seekToBeginning(List.of(partition));
      long endMs = System.currentTimeMillis() + 60_000;
      while (System.currentTimeMillis() < endMs
          && (found.size() < count || consumer.position(partition) < consumer.endOffsets(List.of(partition)).get(partition))) {
        consumer.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.value()));
      }
    }
    int first = IntStream.range(0, Math.min(count, found.size())).filter(n -> found.get(n) != n).findFirst().orElse(-1);
    if (first >= 0) return ": found " + found.get(first) + " in the place of " + first;
    return found.size() == count ? "" : ": found " + found.size() + " of " + count;
  }
}
