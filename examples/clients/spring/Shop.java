import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.BooleanOutput;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.output.NestedMultiOutput;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Stream;
import org.springframework.data.redis.connection.lettuce.LettuceConnection;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.stereotype.Service;

/** A shop with Spring Data Redis and Lettuce: a sale that may be repeated, a filter, a cached read, a limit. */
@Service
public class Shop {
  private final LettuceConnectionFactory connections;

  public Shop(LettuceConnectionFactory connections) {
    this.connections = connections;
  }

  /**
   * What is left, or a code: -1 sold out, -2 over the user's limit. Called again with the same order, it sells once. Lettuce
   * sends it again by itself when its connection breaks; if it fails nevertheless, keep the order, and ask again later.
   */
  public long sell(String sku, int quantity, String order, String user) {
    return number("STOCK.DEDUCT", sku, quantity, "ORDER", order, "USER", user);
  }

  /** False: nobody has this name, for sure. True: ask the database. */
  public boolean mayExist(String name) {
    return (Boolean) call(new BooleanOutput<>(ByteArrayCodec.INSTANCE), "BF.EXISTS", "names", name);
  }

  /** The value, or null if there is none; {@code load} is called by one caller at a time. No BLOCK: the connection is shared. */
  public String cached(String key, Function<String, String> load) throws InterruptedException {
    while (true) {
      List<?> reply = list("CACHE.FETCH", key, "LEASE", 3000);
      String state = text(reply.get(0));
      Object n = reply.get(2);
      if (state.equals("WAIT")) {
        Thread.sleep(Math.min((Long) n, 20)); // somebody else is loading
        continue;
      }
      String known = text(reply.get(1));
      if (state.equals("DOWN") && known == null) throw new IllegalStateException("it could not be loaded a moment ago: " + key);
      if (!state.equals("LEASE")) return known; // HIT, STALE, and DOWN if there is an old one; null for NULL and ABSENT
      String value;
      try {
        value = load.apply(key);
      } catch (RuntimeException failure) {
        number("CACHE.FAIL", key, n, "BACKOFF", 1000);
        throw failure;
      }
      if (value == null) number("CACHE.SETNULL", key, "PX", 5000, "TOKEN", n);
      else number("CACHE.SET", key, value, "PX", 60_000, "JITTER", 10, "TOKEN", n);
      return value;
    }
  }

  /** 0 if the user may go on, else how many milliseconds to wait: 10 a second, 20 more after a quiet time. */
  public long retryAfter(String user) {
    List<?> reply = list("RATE.GCRA", "limit:" + user, 20, 10, 1000);
    return (Long) reply.get(0) == 1 ? (Long) reply.get(3) : 0;
  }

  private Long number(String command, Object... arguments) {
    return (Long) call(new IntegerOutput<>(ByteArrayCodec.INSTANCE), command, arguments);
  }

  private List<?> list(String command, Object... arguments) {
    return (List<?>) call(new NestedMultiOutput<>(ByteArrayCodec.INSTANCE), command, arguments);
  }

  /** Without an output named, Spring takes the reply of a command that it does not know for a string. */
  private Object call(CommandOutput<byte[], byte[], ?> output, String command, Object... arguments) {
    byte[][] bytes = Stream.of(arguments).map(word -> word.toString().getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
    try (LettuceConnection connection = (LettuceConnection) connections.getConnection()) {
      return connection.execute(command, output, bytes);
    }
  }

  private static String text(Object bytes) {
    return bytes == null ? null : new String((byte[]) bytes, StandardCharsets.UTF_8);
  }
}
