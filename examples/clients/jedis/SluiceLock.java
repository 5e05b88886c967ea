import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.commands.ProtocolCommand;

/**
 * A lock on a server, for the threads of all processes. A thread can acquire it again. The server renews a hold while the
 * connection of the hold is open.
 */
public final class SluiceLock implements Lock {
  /** Another owner may hold the lock. Stop the protected work. */
  public static final class LockLostException extends RuntimeException {
    LockLostException(String key) {
      super(key);
    }
  }

  private static final long TEN_YEARS_MS = 315_360_000_000L; // the longest BLOCK
  private static final int REPLY_MS = 5000; // how long a reply may take beyond BLOCK

  private final HostAndPort server;
  private final String key;
  private final long leaseMs;
  private final ThreadLocal<Hold> holds = new ThreadLocal<>();

  public SluiceLock(HostAndPort server, String key, long leaseMs) {
    this.server = server;
    this.key = key;
    this.leaseMs = leaseMs;
  }

  /** The hold of a thread. Only this hold uses its connection, because the server releases it with the connection. */
  private final class Hold {
    final Jedis own;
    final String owner = UUID.randomUUID().toString(); // of this hold, not of this process
    long fence;
    int count = 1;

    /** The read timeout must be longer than BLOCK; 0 is without limit. */
    Hold(long timeoutMs) {
      int timeout = timeoutMs > Integer.MAX_VALUE ? 0 : (int) timeoutMs;
      own = new Jedis(server, DefaultJedisClientConfig.builder().socketTimeoutMillis(timeout).build());
    }

    /** Returns whether the lock was acquired. If it was not, closes the connection. */
    boolean acquire(String... block) {
      List<String> words = new ArrayList<>(List.of(key, owner, "PX", "" + leaseMs, "WATCHDOG", "ID", owner));
      words.addAll(List.of(block));
      boolean isHeld = false;
      try {
        Object reply = call("LOCK.ACQUIRE", words.toArray(String[]::new));
        if (reply == null) return false;
        fence = (Long) reply;
        own.getConnection().setSoTimeout(REPLY_MS); // so that check() and unlock() fail after 5 s on a dead network
        isHeld = true;
        return true;
      } finally {
        if (!isHeld) own.close();
      }
    }

    Object call(String command, String... arguments) {
      ProtocolCommand name = command::getBytes;
      return own.sendCommand(name, arguments);
    }
  }

  /** Waits without limit, even if the thread is interrupted. */
  @Override
  public void lock() {
    if (!reenter()) keepIf(new Hold(0), "BLOCK", "0");
  }

  @Override
  public boolean tryLock() {
    return reenter() || keepIf(new Hold(REPLY_MS));
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    if (Thread.interrupted()) throw new InterruptedException();
    if (!reenter()) waitFor(new Hold(0), 0);
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    if (Thread.interrupted()) throw new InterruptedException();
    long waitMs = Math.min(unit.toMillis(time), TEN_YEARS_MS);
    if (waitMs <= 0) return tryLock(); // BLOCK 0 is without limit
    return reenter() || waitFor(new Hold(waitMs + REPLY_MS), waitMs);
  }

  /** Releases the lock; throws LockLostException if it was lost before. */
  @Override
  public void unlock() {
    Hold hold = held();
    if (--hold.count > 0) return;
    holds.remove();
    try (hold.own) { // in each case, the server releases the hold with its connection
      if (hold.call("LOCK.RELEASE", key, hold.owner, "ALL") == null) throw new LockLostException(key);
    }
  }

  /** The server has no conditions: it cannot release a lock and let its owner wait for a signal in one step. */
  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException("a lock on a server has no conditions: use a stream or Pub/Sub for signals");
  }

  /** The fencing token of this thread's hold: send it with each protected write. */
  public long fence() {
    return held().fence;
  }

  /** Throws LockLostException unless this thread holds the lock. Call it before each protected step. */
  public void check() {
    Hold hold = held();
    if (!Long.valueOf(hold.fence).equals(hold.call("LOCK.HELD", key, hold.owner))) throw new LockLostException(key);
  }

  private Hold held() {
    Hold hold = holds.get();
    if (hold == null) throw new IllegalMonitorStateException(key);
    return hold;
  }

  private boolean reenter() {
    Hold hold = holds.get();
    if (hold != null) hold.count++;
    return hold != null;
  }

  private boolean keepIf(Hold hold, String... block) {
    boolean isHeld = hold.acquire(block);
    if (isHeld) holds.set(hold);
    return isHeld;
  }

  /** Lets another thread read the reply, because a read cannot be interrupted. */
  private boolean waitFor(Hold hold, long waitMs) throws InterruptedException {
    FutureTask<Boolean> reply = new FutureTask<>(() -> hold.acquire("BLOCK", "" + waitMs));
    Thread reader = new Thread(reply, "waits for " + key);
    reader.setDaemon(true);
    reader.start();
    try {
      boolean isHeld = reply.get();
      if (isHeld) holds.set(hold);
      return isHeld;
    } catch (InterruptedException interruption) {
      hold.own.close(); // the server removes the request, or releases the hold
      throw interruption;
    } catch (ExecutionException failure) {
      throw (RuntimeException) failure.getCause();
    }
  }
}
