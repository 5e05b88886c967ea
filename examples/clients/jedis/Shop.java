import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.UUID;
import java.util.function.Function;
import java.util.function.LongFunction;
import redis.clients.jedis.ClusterCommandArguments;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;

/** A shop with Jedis: an idempotent sale, a filter, a cached read, a limit. Copy the methods that you need. */
public final class Shop {
  private final UnifiedJedis jedis; // RedisClient or RedisClusterClient: a pool of connections

  public Shop(UnifiedJedis jedis) {
    this.jedis = jedis;
  }

  /** Returns the available quantity, or a code: -1 sold out, -2 over the user's limit. A repetition with the same order sells once. */
  public long sell(String sku, int quantity, String order, String user) {
    return (Long) repeated("STOCK.DEDUCT", sku, quantity, "ORDER", order, "USER", user);
  }

  /** Returns false if the name certainly does not exist. True: query the database. */
  public boolean mayExist(String name) {
    return jedis.bfExists("names", name);
  }

  /** Returns the value, or null if there is none. One caller at a time calls {@code load}. BLOCK is less than the socket's timeout. */
  public String cached(String key, Function<String, String> load) {
    while (true) {
      List<?> reply = (List<?>) call("CACHE.FETCH", key, "LEASE", 3000, "BLOCK", 1000);
      String state = text(reply.get(0));
      if (state.equals("WAIT")) continue; // another caller has been loading for more than a second
      String known = text(reply.get(1));
      if (state.equals("DOWN") && known == null) throw new IllegalStateException("it could not be loaded a moment ago: " + key);
      if (state.equals("MISS") && known == null) return load.apply(key); // a replica: it grants no leases
      if (!state.equals("LEASE")) return known; // HIT, STALE, DOWN or MISS with an old value; null for NULL and ABSENT
      Object token = reply.get(2);
      String value;
      try {
        value = load.apply(key);
      } catch (RuntimeException failure) {
        call("CACHE.FAIL", key, token, "BACKOFF", 1000);
        throw failure;
      }
      if (value == null) call("CACHE.SETNULL", key, "PX", 5000, "TOKEN", token);
      else call("CACHE.SET", key, value, "PX", 60_000, "JITTER", 10, "TOKEN", token);
      return value;
    }
  }

  /**
   * Returns the result of {@code work}. One caller at a time works, and the result is stored for a day. Choose a lease that is longer
   * than the longest work. The token is a fence for what the work changes. If the key was used with another fingerprint, the call fails
   * with CONFLICT.
   */
  public String once(String key, String fingerprint, long leaseMs, LongFunction<String> work) {
    while (true) {
      List<?> reply = (List<?>) call("ONCE.BEGIN", key, "LEASE", leaseMs, "FINGERPRINT", fingerprint, "BLOCK", 1000);
      String state = text(reply.get(0));
      if (state.equals("BUSY")) continue; // another caller has been working for more than a second
      if (state.equals("DONE")) return text(reply.get(1));
      Object token = reply.get(2);
      String result;
      try {
        result = work.apply((Long) token);
      } catch (RuntimeException failure) {
        call("ONCE.FAIL", key, token);
        throw failure;
      }
      if ((Long) repeated("ONCE.DONE", key, token, result, "PX", 86_400_000) == 1) return result;
      throw new IllegalStateException("the lease ended before the work: " + key);
    }
  }

  /** Returns 0 if the request is allowed, else the milliseconds to wait: 10 requests a second, 20 more after a quiet time. */
  public long retryAfter(String user) {
    List<?> reply = (List<?>) call("RATE.GCRA", "limit:" + user, 20, 10, 1000);
    return (Long) reply.get(0) == 1 ? (Long) reply.get(3) : 0;
  }

  /** Sends an idempotent command again if the connection breaks. */
  private Object repeated(String command, String key, Object... arguments) {
    for (int attempt = 1; ; attempt++) {
      try {
        return call(command, key, arguments);
      } catch (JedisConnectionException lost) {
        if (attempt == 5) throw lost; // the server may have carried it out: repeat it later with the same arguments
      }
    }
  }

  /** Sends a command and names its key: a client of a cluster finds the node by it. */
  private Object call(String command, String key, Object... arguments) {
    ProtocolCommand name = command::getBytes;
    return jedis.executeCommand(new ClusterCommandArguments(name).key(key).addObjects(arguments));
  }

  /** Jedis returns the strings of unknown commands as bytes. */
  private static String text(Object bytes) {
    return bytes == null ? null : new String((byte[]) bytes, StandardCharsets.UTF_8);
  }

  /** Runs it on a server with Sluice. */
  public static void main(String[] arguments) throws Exception {
    HostAndPort server = HostAndPort.from(arguments.length > 0 ? arguments[0] : "localhost:6379");
    SluiceLock lock = new SluiceLock(server, "account:ann", 30_000);
    lock.lock();
    try {
      lock.check();
      // UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?
      System.out.println("held: " + (lock.fence() > 0));
    } finally {
      lock.unlock();
    }
    try (RedisClient jedis = RedisClient.builder().hostAndPort(server).build()) {
      Shop shop = new Shop(jedis);
      shop.call("STOCK.SET", "sku:1", 10, "NX");
      String order = UUID.randomUUID().toString();
      System.out.println("left: " + shop.sell("sku:1", 1, order, "ann") + " " + shop.sell("sku:1", 1, order, "ann"));
      jedis.bfAdd("names", "ann");
      System.out.println("names: " + shop.mayExist("ann") + " " + shop.mayExist("bob"));
      System.out.println("cached: " + shop.cached("user:ann", key -> "Ann") + " " + shop.cached("user:ann", key -> "Ann"));
      System.out.println("paid: " + shop.once("payment:1", "30 EUR", 30_000, token -> "receipt"));
      System.out.println("retry after: " + shop.retryAfter("ann"));
    }
  }
}
