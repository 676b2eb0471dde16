import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** Each task numbers records of its partition of a `topic`, from 0 on, until the file `stop` exists. */
public class Numbers extends SourceConnector {
  private static final int EACH = 20;
  private Map<String, String> settings;

  @Override
  public void start(Map<String, String> given) {
    settings = given;
  }

  @Override
  public List<Map<String, String>> taskConfigs(int most) {
    return IntStream.range(0, most).mapToObj(number ->
        Map.of("topic", settings.get("topic"), "stop", settings.get("stop"), "number", String.valueOf(number))).toList();
  }

  @Override
  public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> given) {
    return ExactlyOnceSupport.SUPPORTED;
  }

  @Override
  public Class<? extends Task> taskClass() {
    return Numbering.class;
  }

  @Override
  public void stop() {}

  @Override
  public ConfigDef config() {
    return new ConfigDef().define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "where to")
        .define("stop", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "a file: no more");
  }

  @Override
  public String version() {
    return "1";
  }

  /** One partition. */
  public static class Numbering extends SourceTask {
    private String topic;
    private Path stop;
    private int number;
    private long next;

    @Override
    public void start(Map<String, String> given) {
      topic = given.get("topic");
      stop = Path.of(given.get("stop"));
      number = Integer.parseInt(given.get("number"));
      Map<String, Object> last = context.offsetStorageReader().offset(place());
      next = last == null ? 0 : (Long) last.get("next");
    }

    @Override
    public List<SourceRecord> poll() throws InterruptedException {
      Thread.sleep(100);
      if (Files.exists(stop)) return null;
      long first = next;
      next += EACH;
      return LongStream.range(first, next).mapToObj(n -> new SourceRecord(
          place(), Map.of("next", n + 1), topic, number, null, null, Schema.STRING_SCHEMA, String.valueOf(n))).toList();
    }

    private Map<String, String> place() {
      return Map.of("number", String.valueOf(number));
    }

    @Override
    public void stop() {}

    @Override
    public String version() {
      return "1";
    }
  }
}
