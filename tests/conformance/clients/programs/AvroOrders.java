import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Arguments: bootstrap, registry, topic, write or read, count. Writes orders with Apicurio's serializer, or prints them. */
public class AvroOrders {
    static final Schema ORDER = new Schema.Parser().parse("""
        {"type": "record", "name": "Order", "namespace": "shop", "fields": [
            {"name": "user", "type": "string"},
            {"name": "n", "type": ["null", "long"], "default": null},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
            {"name": "tags", "type": {"type": "map", "values": "int"}}]}""");

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], registry = arguments[1], topic = arguments[2];
        int count = Integer.parseInt(arguments[4]);
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap,
            "apicurio.registry.url", registry,
            "apicurio.registry.auto-register", true,
            "apicurio.registry.headers.enabled", false,
            "apicurio.registry.id-handler", "io.apicurio.registry.serde.Legacy4ByteIdHandler",
            "apicurio.registry.use-id", "contentId"));
        if (arguments[3].equals("write")) write(settings, topic, count);
        else read(settings, topic, count);
    }

    private static void write(Map<String, Object> settings, String topic, int count) {
        var serializer = new AvroKafkaSerializer<GenericRecord>();
        serializer.configure(settings, false);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), serializer)) {
            for (int n = 0; n < count; n++) {
                GenericRecord order = new GenericData.Record(ORDER);
                order.put("user", "user " + n);
                order.put("n", n % 3 == 0 ? null : (long) n << 40);
                order.put("amount", ByteBuffer.wrap(BigDecimal.valueOf(n * 25L - 1000, 2).unscaledValue().toByteArray()));
                order.put("tags", Map.of("tag", n));
                producer.send(new ProducerRecord<>(topic, 0, "user " + n, order));
            }
        }
    }

    private static void read(Map<String, Object> settings, String topic, int count) {
        var deserializer = new AvroKafkaDeserializer<GenericRecord>();
        deserializer.configure(settings, false);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), deserializer)) {
            var partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            while (consumer.position(partition) < count) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) System.out.println(record.value());
            }
        }
    }
}
