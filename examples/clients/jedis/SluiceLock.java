import java.util.UUID;
import java.util.concurrent.TimeoutException;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;

/**
 * A lock that the server renews while its connection is open. A try-with-resources statement releases it at the end. Call
 * {@link #release} before that: it throws if the lock was lost.
 */
public final class SluiceLock implements AutoCloseable {
  /** Another owner may hold the lock. Stop the protected work. */
  public static final class LockLostException extends RuntimeException {
    LockLostException(String key) {
      super(key);
    }
  }

  private final Jedis own;
  private final String key;
  private final String owner = UUID.randomUUID().toString(); // of this hold, not of this process
  private final long fence;

  /** Waits for the lock. Only this lock uses the connection, because the hold is bound to it. */
  public SluiceLock(HostAndPort server, String key, long leaseMs, int waitMs) throws TimeoutException {
    this.key = key;
    own = new Jedis(server, DefaultJedisClientConfig.builder().socketTimeoutMillis(waitMs + 5000).build()); // longer than BLOCK
    try {
      Object reply = call("LOCK.ACQUIRE", key, owner, "PX", "" + leaseMs, "BLOCK", "" + waitMs, "WATCHDOG", "ID", owner);
      if (reply == null) throw new TimeoutException(key);
      fence = (Long) reply;
    } catch (Throwable failure) {
      own.close();
      throw failure;
    }
  }

  /** The fencing token: send it with each protected write. */
  public long fence() {
    return fence;
  }

  /** Throws unless the lock is held. Call it before each protected step. */
  public void check() {
    if (!Long.valueOf(fence).equals(call("LOCK.HELD", key, owner))) throw new LockLostException(key);
  }

  /** Releases the lock; throws if it was lost before. */
  public void release() {
    if (call("LOCK.RELEASE", key, owner, "ALL") == null) throw new LockLostException(key);
  }

  /** Closes the connection. The server then releases the lock, if it is still held. */
  @Override
  public void close() {
    own.close();
  }

  private Object call(String command, String... arguments) {
    ProtocolCommand name = command::getBytes;
    return own.sendCommand(name, arguments);
  }
}
