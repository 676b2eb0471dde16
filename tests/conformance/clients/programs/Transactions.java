import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Arguments: bootstrap, topic, partitions, producers, longest pause in ms, name, instance, file that names the instance
 * that is to live. Each producer makes one transaction after the other until standard input ends. See transacting.py.
 */
public class Transactions {
  static final int COMMITS_MAX = 5;
  static volatile boolean isOver;

  final String bootstrap, topic, name, instance;
  final int partitions, pauseMs, number;
  final Path living;
  final Random dice = new Random();

  Transactions(String[] given, int number) {
    bootstrap = given[0];
    topic = given[1];
    partitions = Integer.parseInt(given[2]);
    pauseMs = Integer.parseInt(given[4]);
    name = given[5] + "-" + number;
    instance = given[6];
    living = Path.of(given[7]);
    this.number = number;
  }

  boolean goesOn() throws Exception {
    return !isOver && Files.readString(living).equals(instance);
  }

  KafkaProducer<String, String> producer() {
    Map<String, Object> settings = Map.of(
        "bootstrap.servers", bootstrap, "transactional.id", name, "linger.ms", 0, "batch.size", 200,
        "transaction.timeout.ms", 20_000, "max.block.ms", 10_000, "request.timeout.ms", 4_000, "delivery.timeout.ms", 9_000);
    return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
  }

  static void commit(KafkaProducer<String, String> producer) {
    for (int left = COMMITS_MAX; ; left--) {
      try {
        producer.commitTransaction();
        return;
      } catch (TimeoutException error) { // it may be asked again
        if (left == 0) {
          throw error;
        }
      }
    }
  }

  void said(String what, int at, int count) {
    synchronized (System.out) {
      System.out.println(what + " " + name + " " + instance + " " + at + " " + count);
      System.out.flush();
    }
  }

  /** Make transactions with one producer until it fails; return the number of the next. */
  int work(int at) throws Exception {
    var producer = producer();
    try {
      producer.initTransactions();
      while (goesOn()) {
        int count = 1 + dice.nextInt(12), last = at++;
        boolean commits = dice.nextInt(4) > 0;
        String outcome = "aborted";
        try {
          producer.beginTransaction();
          for (int i = 0; i < count; i++) {
            String value = String.join(" ", name, instance, "" + last, "" + i, "" + count, commits ? "commit" : "abort");
            producer.send(new ProducerRecord<>(topic, dice.nextInt(partitions), null, value));
          }
          if (commits) {
            outcome = "unknown";
            commit(producer);
            outcome = "committed";
          } else {
            producer.abortTransaction();
          }
        } catch (KafkaException error) {
          System.out.println("failed " + error);
          producer.abortTransaction(); // a fatal error is raised again
        } finally {
          said(outcome, last, count);
        }
        if (pauseMs > 0 && dice.nextBoolean()) {
          Thread.sleep(dice.nextInt(pauseMs));
        }
      }
    } catch (KafkaException error) {
      System.out.println("failed " + error);
    } finally {
      producer.close(Duration.ZERO);
    }
    return at;
  }

  void run() {
    try {
      for (int at = 0; goesOn(); ) {
        at = work(at);
      }
    } catch (Exception error) {
      System.out.println("broken " + error);
    }
  }

  public static void main(String[] given) throws Exception {
    List<Thread> threads = IntStream.range(0, Integer.parseInt(given[3]))
        .mapToObj(number -> new Thread(() -> new Transactions(given, number).run())).toList();
    threads.forEach(Thread::start);
    while (System.in.read() >= 0) {}
    isOver = true;
    for (Thread each : threads) {
      each.join();
    }
  }
}
