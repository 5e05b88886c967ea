import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.json.JSONArray;
import org.json.JSONObject;
import redis.clients.jedis.ClusterCommandArguments;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisClusterOperationException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * The runner of examples/clients/jedis: scripts/prepare-java compiles it with SluiceLock and Shop. The argument is the protocol, 2 or 3;
 * locks use RESP2 in any case. Operations that these files lack are single commands.
 */
public final class JedisRunner {
  /** The client reads for this long; longer than the BLOCK of Shop. */
  private static final int TIMEOUT_MS = 2500;

  private static final Map<Long, String> REFUSALS = Map.of(-1L, "SOLD_OUT", -2L, "OVER_USER_LIMIT", -3L, "CLOSED", -4L, "UNKNOWN");

  private static final Map<String, String> ERRORS =
      Map.of("CONFLICT", "Conflict", "WRONGTYPE", "WrongType", "ERR no such delay queue", "NoSuchQueue");

  /** A reply that is no success. */
  private static final class Refused extends RuntimeException {
    Refused(String reason) {
      super(reason);
    }
  }

  private interface Operation {
    Object run(JSONObject words) throws Exception;
  }

  /** A lock, several locks or permits. */
  private interface Held {
    void check() throws Exception;

    void release() throws Exception;
  }

  private final Map<String, Operation> operations = new TreeMap<>();
  private final Map<String, Held> holds = new ConcurrentHashMap<>();
  private final RedisProtocol protocol;
  private volatile UnifiedJedis jedis;
  private volatile Supplier<HostAndPort> lockServer;

  private JedisRunner(RedisProtocol protocol) {
    this.protocol = protocol;
    operations.put("lock.acquire", this::acquire);
    operations.put("lock.acquire_many", this::acquireMany);
    operations.put("semaphore.acquire", this::acquirePermits);
    operations.put("lock.check", words -> {
      hold(words).check();
      return true;
    });
    operations.put("lock.release", words -> {
      hold(words).release();
      return true;
    });
    operations.put("lock.lost", words -> {
      try {
        hold(words).check();
        return false;
      } catch (SluiceLock.LockLostException | JedisConnectionException loss) {
        return true;
      }
    });
    operations.put("stock.deduct", words -> changed(
        shop().sell(key(words), words.getInt("qty"), words.getString("order"), words.getString("user"))));
    operations.put("stock.deduct_many", this::deductMany);
    operations.put("stock.reserve", words -> changed(
        call("STOCK.RESERVE", key(words), words.get("qty"), "ORDER", words.get("order"), "PX", words.get("ms"))));
    operations.put("stock.confirm", words -> changed(call("STOCK.CONFIRM", key(words), words.get("order"))));
    operations.put("stock.cancel", words -> changed(call("STOCK.CANCEL", key(words), words.get("order"))));
    operations.put("stock.add", words -> changed(
        call("STOCK.ADD", key(words), words.get("delta"), "ORDER", words.get("order"))));
    operations.put("once.run", words -> {
      int[] runs = {0};
      String result = shop().once(key(words), words.optString("fingerprint", "none"), words.optLong("lease", 30_000),
          token -> work(words, "result", runs));
      return Map.of("result", result, "runs", runs[0]);
    });
    operations.put("cache.get", words -> {
      int[] runs = {0};
      String value = shop().cached(key(words), key -> work(words, "value", runs));
      return Map.of("value", value, "runs", runs[0]);
    });
    operations.put("cache.delete", words -> call("CACHE.DEL", key(words)));
    operations.put("delay.add", words -> is(
        call("DELAY.ADD", key(words), words.get("message"), "PX", words.get("ms"), "VALUES", "text", words.get("message"))));
    operations.put("delay.cancel", words -> is(call("DELAY.CANCEL", key(words), words.get("message"))));
    operations.put("limit.gcra", words -> {
      Object reply = call("RATE.GCRA", key(words), words.get("burst"), words.get("count"), words.get("period"));
      return !is(((List<?>) reply).get(0));
    });
    operations.put("limit.first", words -> is(call("RATE.ONCE", key(words), "PX", words.get("ms"))));
    operations.put("bloom.add", words -> jedis.bfAdd(key(words), words.getString("item")));
    operations.put("bloom.exists", words -> jedis.bfExists(key(words), words.getString("item")));
  }

  private void connect(JSONObject words) {
    if (jedis != null) jedis.close();
    holds.clear();
    HostAndPort server = new HostAndPort(words.getString("host"), words.getInt("port"));
    JedisClientConfig config = DefaultJedisClientConfig.builder().protocol(protocol).socketTimeoutMillis(TIMEOUT_MS).build();
    lockServer = () -> server;
    switch (words.getString("topology")) {
      case "cluster":
        jedis = RedisClusterClient.builder().nodes(Set.of(server)).clientConfig(config).build();
        break;
      case "sentinel":
        RedisSentinelClient client = RedisSentinelClient.builder().sentinels(Set.of(server)).masterName(words.getString("master"))
            .clientConfig(config).build();
        jedis = client;
        lockServer = client::getCurrentMaster;
        break;
      default:
        jedis = RedisClient.builder().hostAndPort(server).clientConfig(config).build();
    }
  }

  private Shop shop() {
    return new Shop(jedis);
  }

  private static String key(JSONObject words) {
    return words.getString("key");
  }

  private static String work(JSONObject words, String result, int[] runs) {
    runs[0]++;
    try {
      Thread.sleep(words.optLong("takes"));
    } catch (InterruptedException interruption) {
      throw new IllegalStateException(interruption);
    }
    return words.getString(result);
  }

  // Locks

  private static String name(JSONObject words) {
    return words.optString("name", "lock");
  }

  private Held hold(JSONObject words) {
    return holds.get(name(words));
  }

  /** A hold belongs to its thread, so each lock has one. */
  private Object acquire(JSONObject words) throws Exception {
    SluiceLock lock = new SluiceLock(lockServer.get(), key(words), words.optLong("lease", 10_000));
    ExecutorService thread = Executors.newSingleThreadExecutor(JedisRunner::daemon);
    long fence = on(thread, () -> {
      if (!lock.tryLock(words.optLong("wait"), TimeUnit.MILLISECONDS)) throw new Refused("timeout");
      return lock.fence();
    });
    holds.put(name(words), new Held() {
      @Override
      public void check() throws Exception {
        on(thread, Executors.callable(lock::check));
      }

      @Override
      public void release() throws Exception {
        on(thread, Executors.callable(lock::unlock));
      }
    });
    return fence;
  }

  private static <T> T on(ExecutorService thread, Callable<T> work) throws Exception {
    try {
      return thread.submit(work).get();
    } catch (ExecutionException failure) {
      throw (Exception) failure.getCause();
    }
  }

  private static Thread daemon(Runnable work) {
    Thread thread = new Thread(work);
    thread.setDaemon(true);
    return thread;
  }

  private Object acquireMany(JSONObject words) {
    String owner = UUID.randomUUID().toString();
    List<Object> keys = words.getJSONArray("keys").toList();
    Object fences = acquired(keyed("LOCK.MACQUIRE", keys, 1).add(owner).add("ID").add(owner));
    holds.put(name(words), released(() -> keyed("LOCK.MRELEASE", keys, 1).add(owner)));
    return fences;
  }

  private Object acquirePermits(JSONObject words) {
    String owner = UUID.randomUUID().toString();
    Object fence = acquired(arguments("SEM.ACQUIRE").key(key(words)).add(owner).add("LIMIT").add(words.get("limit"))
        .add("PERMITS").add(words.get("permits")).add("ID").add(owner));
    holds.put(name(words), released(() -> arguments("SEM.RELEASE").key(key(words)).add(owner).add("ALL")));
    return fence;
  }

  /** Repeats the request with its owner and its id. */
  private Object acquired(CommandArguments request) {
    for (int attempt = 1; ; attempt++) {
      try {
        Object reply = send(request);
        if (reply == null) throw new Refused("timeout");
        return reply;
      } catch (JedisConnectionException broken) {
        if (attempt == 5) throw broken;
      }
    }
  }

  private Held released(Supplier<CommandArguments> command) {
    return new Held() {
      @Override
      public void check() {
        throw new UnsupportedOperationException();
      }

      @Override
      public void release() {
        if (send(command.get()) == null) throw new Refused("lost");
      }
    };
  }

  // Commands

  private static ClusterCommandArguments arguments(String command) {
    ProtocolCommand name = command::getBytes;
    return new ClusterCommandArguments(name);
  }

  /** A command with the number of its keys and these words: every {@code step}th is a key, in any hash slot. */
  private static CommandArguments keyed(String command, List<Object> words, int step) {
    ProtocolCommand name = command::getBytes;
    CommandArguments arguments = new CommandArguments(name);
    arguments.add(words.size() / step);
    for (int index = 0; index < words.size(); index++) {
      if (index % step == 0) arguments.key(words.get(index));
      else arguments.add(words.get(index));
    }
    return arguments;
  }

  private Object call(String command, String key, Object... words) {
    return send(arguments(command).key(key).addObjects(words));
  }

  private Object send(CommandArguments arguments) {
    return jedis.executeCommand(arguments);
  }

  private static boolean is(Object reply) {
    return (Long) reply == 1;
  }

  /** The quantity that a command of a stock replied. */
  private static Object changed(Object reply) {
    String refusal = reply == null ? "UNKNOWN" : REFUSALS.get((Long) reply);
    if (refusal != null) throw new Refused(refusal);
    return reply;
  }

  private Object deductMany(JSONObject words) {
    JSONObject items = words.getJSONObject("items");
    List<Object> pairs = new ArrayList<>();
    for (String key : new TreeMap<>(items.toMap()).keySet()) pairs.addAll(List.of(key, items.get(key)));
    return send(keyed("STOCK.MDEDUCT", pairs, 2).add("ORDER").add(words.get("order")));
  }

  // Requests and answers

  private JSONObject answer(JSONObject words) {
    JSONObject answer = new JSONObject();
    try {
      Object value = operations.get(words.getString("do")).run(words);
      return answer.put("ok", value == null ? JSONObject.NULL : JSONObject.wrap(value));
    } catch (Refused refusal) {
      return answer.put("refused", refusal.getMessage());
    } catch (SluiceLock.LockLostException loss) {
      return answer.put("refused", "lost");
    } catch (JedisConnectionException | JedisClusterOperationException broken) {
      return answer.put("error", "connection").put("text", broken.toString());
    } catch (JedisDataException error) {
      for (Map.Entry<String, String> known : ERRORS.entrySet())
        if (error.getMessage().startsWith(known.getKey())) return answer.put("error", known.getValue());
      return answer.put("error", "another").put("text", error.toString());
    } catch (Exception error) {
      return answer.put("error", "another").put("text", error.toString());
    }
  }

  private static synchronized void write(JSONObject line) {
    System.out.println(line);
    System.out.flush();
  }

  private static String version() throws IOException {
    Properties about = new Properties();
    about.load(RedisClient.class.getResourceAsStream("/redis/clients/jedis/pom.properties"));
    return about.getProperty("version");
  }

  public static void main(String[] arguments) throws Exception {
    boolean isResp3 = arguments[arguments.length - 1].equals("3");
    JedisRunner runner = new JedisRunner(isResp3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2);
    List<String> names = new ArrayList<>(runner.operations.keySet());
    names.add("bound");
    write(new JSONObject()
        .put("client", "Jedis " + version())
        .put("runtime", "Java " + Runtime.version().feature())
        .put("repeats", false)
        .put("operations", names)
        .put("without", new JSONObject().put("cluster", new JSONArray(List.of("lock.acquire")))));
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      JSONObject words = new JSONObject(line);
      if (words.getString("do").equals("connect")) {
        runner.connect(words);
        write(new JSONObject().put("id", words.getInt("id")).put("ok", JSONObject.NULL));
      } else {
        daemon(() -> write(runner.answer(words).put("id", words.getInt("id")))).start();
      }
    }
  }
}
