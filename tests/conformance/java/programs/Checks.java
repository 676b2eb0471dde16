import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;

/** Prints one line a check: `ok NAME`, or `bad NAME: why`. */
final class Checks {
  private static final long WITHIN_MS = 60_000, LOOK_MS = 50;

  /** What is found is what is wanted. */
  void equal(String name, Object wanted, Callable<?> found) {
    say(name, difference(wanted, found));
  }

  /** What is found becomes what is wanted; an error may come before. */
  void becomes(String name, Object wanted, Callable<?> found) {
    long endMs = System.currentTimeMillis() + WITHIN_MS;
    String different = difference(wanted, found);
    while (different != null && System.currentTimeMillis() < endMs) {
      try {
        Thread.sleep(LOOK_MS);
      } catch (InterruptedException error) {
        break;
      }
      different = difference(wanted, found);
    }
    say(name, different);
  }

  /** The call fails, with an error whose class has this name. */
  void fails(String name, String error, Callable<?> call) {
    equal(name, error, () -> {
      try {
        return "none, but " + call.call();
      } catch (ExecutionException failed) {
        return failed.getCause().getClass().getSimpleName();
      } catch (Exception failed) {
        return failed.getClass().getSimpleName();
      }
    });
  }

  private static String difference(Object wanted, Callable<?> found) {
    try {
      Object is = found.call();
      return Objects.equals(wanted, is) ? null : "found " + is + ", not " + wanted;
    } catch (ExecutionException error) {
      return "raised " + error.getCause();
    } catch (Exception error) {
      return "raised " + error;
    }
  }

  private static void say(String name, String different) {
    System.out.println(different == null ? "ok " + name : "bad " + name + ": " + different);
  }
}
