import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.server.quota.QuotaUtils;

/** How long Kafka's own quotas make a client wait. A line "rate|tokens SAMPLES SAMPLE_MS LIMIT" begins one, others are
 * "NOW_MS VALUE" of it; each of these is answered with the time to wait. */
public class Waits {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        Sensor sensor = null;
        boolean hasTokens = false;
        int number = 0;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words.length == 4) {
                hasTokens = words[0].equals("tokens");
                MetricConfig config = new MetricConfig()
                    .samples(Integer.parseInt(words[1]))
                    .timeWindow(Long.parseLong(words[2]), TimeUnit.MILLISECONDS)
                    .quota(new Quota(Double.parseDouble(words[3]), true));
                Metrics metrics = new Metrics();
                sensor = metrics.sensor("s" + number++, config);
                sensor.add(metrics.metricName("m", "g"), hasTokens ? new TokenBucket() : new Rate());
                continue;
            }
            long nowMs = Long.parseLong(words[0]);
            double value = Double.parseDouble(words[1]);
            long waitMs = 0;
            try {
                if (hasTokens) {
                    sensor.checkQuotas(nowMs);
                    sensor.record(value, nowMs, false);
                } else {
                    sensor.record(value, nowMs, value >= 0);
                }
            } catch (QuotaViolationException error) {
                waitMs = hasTokens
                    ? Math.round(-error.value() / error.bound() * 1000)
                    : QuotaUtils.throttleTime(error, nowMs);
            }
            out.append(waitMs).append('\n');
        }
        System.out.print(out);
    }
}
