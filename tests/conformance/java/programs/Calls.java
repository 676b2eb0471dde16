import java.util.HashMap;
import java.util.Map;

/** Calls of a client, and their checks; `name` is, or begins, the names of what they make. */
abstract class Calls {
  final String bootstrap, name;
  final Checks checks;

  Calls(String bootstrap, String name, Checks checks) {
    this.bootstrap = bootstrap;
    this.name = name;
    this.checks = checks;
  }

  abstract void all() throws Exception;

  /** A client's settings: these, and where the brokers are. */
  Map<String, Object> settings(Map<String, ?> more) {
    var settings = new HashMap<String, Object>(more);
    settings.put("bootstrap.servers", bootstrap);
    return settings;
  }
}
