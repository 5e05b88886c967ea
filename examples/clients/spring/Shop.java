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

/** A shop with Spring Data Redis and Lettuce: an idempotent sale, a filter, a cached read, a limit. */
@Service
public class Shop {
  private final LettuceConnectionFactory connections;

  public Shop(LettuceConnectionFactory connections) {
    this.connections = connections;
  }

  /**
   * Returns the available quantity, or a code: -1 sold out, -2 over the user's limit. A repetition with the same order sells
   * once. If a connection breaks, Lettuce sends the command again. If that fails, keep the order id and repeat it later.
   */
  public long sell(String sku, int quantity, String order, String user) {
    return number("STOCK.DEDUCT", sku, quantity, "ORDER", order, "USER", user);
  }

  /** Returns false if the name certainly does not exist. True: query the database. */
  public boolean mayExist(String name) {
    return (Boolean) call(new BooleanOutput<>(ByteArrayCodec.INSTANCE), "BF.EXISTS", "names", name);
  }

  /** Returns the value, or null if there is none. One caller at a time calls {@code load}. No BLOCK: the connection is shared. */
  public String cached(String key, Function<String, String> load) throws InterruptedException {
    while (true) {
      List<?> reply = list("CACHE.FETCH", key, "LEASE", 3000);
      String state = text(reply.get(0));
      Object n = reply.get(2);
      if (state.equals("WAIT")) {
        Thread.sleep(Math.min((Long) n, 20)); // another caller loads
        continue;
      }
      String known = text(reply.get(1));
      if (state.equals("DOWN") && known == null) throw new IllegalStateException("it could not be loaded a moment ago: " + key);
      if (state.equals("MISS") && known == null) return load.apply(key); // a replica: it grants no leases
      if (!state.equals("LEASE")) return known; // HIT, STALE, DOWN or MISS with an old value; null for NULL and ABSENT
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

  /** Returns 0 if the request is allowed, else the milliseconds to wait: 10 requests a second, 20 more after a quiet time. */
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

  /** Without a named output, Spring reads the reply of an unknown command as a string. */
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
