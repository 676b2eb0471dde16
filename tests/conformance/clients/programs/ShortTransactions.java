import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Arguments: bootstrap, topic, partitions, producers, seconds. Each producer begins a transaction as soon as one is committed. */
public class ShortTransactions {
  public static void main(String[] given) throws Exception {
    String bootstrap = given[0], topic = given[1];
    int partitions = Integer.parseInt(given[2]), producers = Integer.parseInt(given[3]);
    long endMs = System.currentTimeMillis() + 1000 * Long.parseLong(given[4]);
    AtomicInteger committed = new AtomicInteger(), records = new AtomicInteger();
    ConcurrentLinkedQueue<Throwable> failed = new ConcurrentLinkedQueue<>();
    List<Thread> threads = IntStream.range(0, producers).mapToObj(number -> new Thread(() -> {
      Random dice = new Random(number);
      Map<String, Object> settings = Map.of(
          "bootstrap.servers", bootstrap, "transactional.id", topic + "-" + number, "linger.ms", 0, "batch.size", 200);
      try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
        producer.initTransactions();
        while (System.currentTimeMillis() < endMs) {
          producer.beginTransaction();
          int count = 1 + dice.nextInt(40);
          for (int i = 0; i < count; i++) {
            producer.send(new ProducerRecord<>(topic, dice.nextInt(partitions), null, number + " " + i));
          }
          producer.commitTransaction();
          committed.incrementAndGet();
          records.addAndGet(count);
        }
      } catch (Throwable error) {
        failed.add(error);
      }
    })).toList();
    threads.forEach(Thread::start);
    for (Thread each : threads) {
      each.join();
    }
    for (Throwable error : failed) {
      System.out.println("failed " + error);
    }
    System.out.println("committed " + committed + " " + records);
  }
}
