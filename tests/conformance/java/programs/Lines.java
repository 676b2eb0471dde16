import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/** Writes each partition to a file of its own in `directory`, a line `OFFSET VALUE` each, and goes on after its last line. */
public class Lines extends SinkConnector {
  private Map<String, String> settings;

  @Override
  public void start(Map<String, String> given) {
    settings = given;
  }

  @Override
  public List<Map<String, String>> taskConfigs(int most) {
    return List.of(settings);
  }

  @Override
  public Class<? extends Task> taskClass() {
    return Writing.class;
  }

  @Override
  public void stop() {}

  @Override
  public ConfigDef config() {
    return new ConfigDef().define("directory", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "where to");
  }

  @Override
  public String version() {
    return "1";
  }

  /** The files: they, and no commit, say where to go on. */
  public static class Writing extends SinkTask {
    private final Map<TopicPartition, RandomAccessFile> files = new HashMap<>();
    private Path directory;

    @Override
    public void start(Map<String, String> given) {
      directory = Path.of(given.get("directory"));
    }

    @Override
    public void open(Collection<TopicPartition> partitions) {
      try {
        for (TopicPartition partition : partitions) {
          Path path = directory.resolve("lines-" + partition.partition());
          String text = Files.exists(path) ? Files.readString(path) : "";
          String whole = text.substring(0, text.lastIndexOf('\n') + 1); // a kill may cut the last one off
          String last = whole.substring(whole.lastIndexOf('\n', whole.length() - 2) + 1);
          var file = new RandomAccessFile(path.toFile(), "rw");
          file.setLength(whole.length());
          file.seek(whole.length());
          files.put(partition, file);
          context.offset(partition, last.isEmpty() ? 0 : Long.parseLong(last.substring(0, last.indexOf(' '))) + 1);
        }
      } catch (IOException error) {
        throw new ConnectException(error);
      }
    }

    @Override
    public void put(Collection<SinkRecord> records) {
      try {
        for (SinkRecord record : records) {
          var file = files.get(new TopicPartition(record.topic(), record.kafkaPartition()));
          file.write((record.kafkaOffset() + " " + record.value() + "\n").getBytes(StandardCharsets.UTF_8));
        }
      } catch (IOException error) {
        throw new ConnectException(error);
      }
    }

    @Override
    public void close(Collection<TopicPartition> partitions) {
      try {
        for (TopicPartition partition : partitions) files.remove(partition).close();
      } catch (IOException error) {
        throw new ConnectException(error);
      }
    }

    @Override
    public void stop() {}

    @Override
    public String version() {
      return "1";
    }
  }
}
