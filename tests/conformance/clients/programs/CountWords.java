import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/** Arguments: bootstrap, topic of lines, topic of counts, directory of its state. Counts words, exactly once, until it is killed. */
public class CountWords {
  public static void main(String[] given) throws Exception {
    Properties settings = new Properties();
    settings.put("application.id", "count-" + given[1]);
    settings.put("bootstrap.servers", given[0]);
    settings.put("state.dir", given[3]);
    settings.put("processing.guarantee", "exactly_once_v2");
    settings.put("num.stream.threads", 2);
    settings.put("commit.interval.ms", 100);
    settings.put("replication.factor", 3);
    settings.put("consumer.session.timeout.ms", 6000);
    settings.put("consumer.auto.offset.reset", "earliest");
    var text = Serdes.String();
    var builder = new StreamsBuilder();
    builder.stream(given[1], Consumed.with(text, text))
        .flatMapValues(line -> Arrays.asList(line.split(" ")))
        .groupBy((key, word) -> word, Grouped.with(text, text))
        .count()
        .toStream()
        .mapValues(String::valueOf)
        .to(given[2], Produced.with(text, text));
    var streams = new KafkaStreams(builder.build(), settings);
    streams.setStateListener((now, before) -> System.out.println("state " + now));
    streams.setUncaughtExceptionHandler(error -> {
      System.out.println("died " + error + " because of " + error.getCause());
      return StreamThreadExceptionResponse.REPLACE_THREAD;
    });
    streams.start();
    Thread.sleep(Long.MAX_VALUE);
  }
}
