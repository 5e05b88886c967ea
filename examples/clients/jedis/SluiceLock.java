import java.util.UUID;
import java.util.concurrent.TimeoutException;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;

/**
 * A lock that the server renews for as long as its connection lives. In a try-with-resources statement it is free at the
 * end, whatever went wrong, and {@link #release} before that tells whether it was held until then.
 */
public final class SluiceLock implements AutoCloseable {
  /** The lock is, or may be, somebody else's: stop what it protects. */
  public static final class LockLostException extends RuntimeException {
    LockLostException(String key) {
      super(key);
    }
  }

  private final Jedis own;
  private final String key;
  private final String owner = UUID.randomUUID().toString(); // of this hold, not of this process
  private final long fence;

  /** Waits for it. The connection is this lock's alone, and none of a pool's: the hold is bound to it. */
  public SluiceLock(HostAndPort server, String key, long leaseMs, int waitMs) throws TimeoutException {
    this.key = key;
    own = new Jedis(server, DefaultJedisClientConfig.builder().socketTimeoutMillis(waitMs + 5000).build()); // not less than BLOCK
    try {
      Object reply = call("LOCK.ACQUIRE", key, owner, "PX", "" + leaseMs, "BLOCK", "" + waitMs, "WATCHDOG", "ID", owner);
      if (reply == null) throw new TimeoutException(key);
      fence = (Long) reply;
    } catch (Throwable failure) {
      own.close();
      throw failure;
    }
  }

  /** For whatever the lock protects. */
  public long fence() {
    return fence;
  }

  /** Throws unless it is still held. Ask before each step that only the holder may take. */
  public void check() {
    if (!Long.valueOf(fence).equals(call("LOCK.HELD", key, owner))) throw new LockLostException(key);
  }

  /** Gives it back; throws if it was not held until now. */
  public void release() {
    if (call("LOCK.RELEASE", key, owner, "ALL") == null) throw new LockLostException(key);
  }

  /** Closes the connection. If the lock was not released, it is free now. */
  @Override
  public void close() {
    own.close();
  }

  private Object call(String command, String... arguments) {
    ProtocolCommand name = command::getBytes;
    return own.sendCommand(name, arguments);
  }
}
