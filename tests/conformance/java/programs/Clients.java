import java.util.Arrays;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;

/** Arguments: bootstrap, name of its topics. Calls what clients of 3.9 and later can do; one line a check. */
public class Clients {
  public static void main(String[] given) throws Exception {
    String bootstrap = given[0], name = given[1];
    var checks = new Checks();
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
      new AdminCalls(bootstrap, name, admin, checks).all();
    }
    new ProducerCalls(bootstrap, name + "-written", checks).all();
    new ConsumerCalls(bootstrap, name + "-read", checks).all();
    var methods = new TreeSet<String>();
    Arrays.stream(Admin.class.getMethods()).forEach(method -> methods.add(method.getName()));
    System.out.println("methods " + String.join(" ", methods));
  }
}
