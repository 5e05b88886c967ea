import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * What examples/clients/jedis/SluiceLock.java promises. Run by hand, with Jedis and its libraries in the class path: javac -d out
 * SluiceLock.java SluiceLockTest.java; java -cp out SluiceLockTest host:port
 */
public final class SluiceLockTest {
  private static HostAndPort server;
  private static Jedis admin;

  private interface Test {
    void run() throws Exception;
  }

  private static SluiceLock lock() {
    return new SluiceLock(server, "key", 30_000);
  }

  private static void expect(boolean condition) {
    if (!condition) throw new AssertionError();
  }

  private static <T extends Throwable> T raises(Class<T> kind, Test test) {
    try {
      test.run();
    } catch (Throwable thrown) {
      if (kind.isInstance(thrown)) return kind.cast(thrown);
      throw new AssertionError(thrown);
    }
    throw new AssertionError(kind + " expected");
  }

  private static long waiting() {
    for (String line : admin.info("sluice").split("\r\n"))
      if (line.startsWith("sluice_lock_waiting:")) return Long.parseLong(line.split(":")[1]);
    throw new AssertionError();
  }

  private static void eventuallyWaiting(long count) throws InterruptedException {
    long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
    while (waiting() != count) {
      expect(System.nanoTime() < deadline);
      Thread.sleep(5);
    }
  }

  private static Thread start(List<Throwable> failures, Test test) {
    Thread thread = new Thread(() -> {
      try {
        test.run();
      } catch (Throwable failure) {
        synchronized (failures) {
          failures.add(failure);
        }
      }
    });
    thread.start();
    return thread;
  }

  private static void threadsExcludeEachOther() throws Exception {
    Lock lock = lock();
    int[] count = {0};
    List<Throwable> failures = new ArrayList<>();
    List<Thread> threads = new ArrayList<>();
    for (int number = 0; number < 20; number++) {
      threads.add(start(failures, () -> {
        lock.lock();
        try {
          int before = count[0];
          Thread.sleep(2);
          count[0] = before + 1;
        } finally {
          lock.unlock();
        }
      }));
    }
    for (Thread thread : threads) thread.join();
    if (!failures.isEmpty()) throw new AssertionError(failures.get(0));
    expect(count[0] == 20);
    expect(!admin.exists("key"));
  }

  private static void aThreadEntersAgain() {
    SluiceLock lock = lock();
    lock.lock();
    long fence = lock.fence();
    expect(lock.tryLock());
    expect(lock.fence() == fence);
    lock.unlock();
    lock.check();
    expect(!lock().tryLock());
    lock.unlock();
    raises(IllegalMonitorStateException.class, lock::unlock);
    expect(!admin.exists("key"));
  }

  private static void aWaitEnds() throws Exception {
    SluiceLock first = lock();
    first.lock();
    SluiceLock other = lock();
    long start = System.nanoTime();
    expect(!other.tryLock(200, TimeUnit.MILLISECONDS));
    expect(System.nanoTime() - start >= TimeUnit.MILLISECONDS.toNanos(200));
    expect(!other.tryLock(0, TimeUnit.SECONDS));
    long fence = first.fence();
    List<Throwable> failures = new ArrayList<>();
    Thread next = start(failures, () -> {
      expect(other.tryLock(Long.MAX_VALUE, TimeUnit.DAYS));
      expect(other.fence() > fence);
      other.unlock();
    });
    eventuallyWaiting(1);
    first.unlock();
    next.join();
    expect(failures.isEmpty());
  }

  private static void aWaitIsInterrupted() throws Exception {
    SluiceLock first = lock();
    first.lock();
    List<Throwable> failures = new ArrayList<>();
    List<Thread> threads = List.of(
        start(failures, () -> lock().lockInterruptibly()),
        start(failures, () -> lock().tryLock(60, TimeUnit.SECONDS)));
    eventuallyWaiting(2);
    for (Thread thread : threads) thread.interrupt();
    for (Thread thread : threads) thread.join();
    for (Throwable failure : failures) expect(failure instanceof InterruptedException);
    expect(failures.size() == 2);
    eventuallyWaiting(0);
    first.unlock();
    lock().lockInterruptibly();
    admin.del("key");
  }

  private static void aLossIsReported() {
    SluiceLock lock = lock();
    lock.lock();
    admin.del("key");
    raises(SluiceLock.LockLostException.class, lock::check);
    raises(SluiceLock.LockLostException.class, lock::unlock);
    raises(IllegalMonitorStateException.class, lock::check);
  }

  private static void anErrorOfTheServerClosesTheConnection() {
    admin.set("key", "text");
    long before = admin.clientList().lines().count();
    JedisDataException error = raises(JedisDataException.class, () -> lock().lock());
    expect(error.getMessage().startsWith("WRONGTYPE"));
    raises(JedisDataException.class, () -> lock().lockInterruptibly());
    expect(admin.clientList().lines().count() == before);
    admin.del("key");
  }

  private static void thereAreNoConditions() {
    raises(UnsupportedOperationException.class, () -> lock().newCondition());
  }

  public static void main(String[] arguments) throws Exception {
    server = HostAndPort.from(arguments[0]);
    admin = new Jedis(server);
    threadsExcludeEachOther();
    aThreadEntersAgain();
    aWaitEnds();
    aWaitIsInterrupted();
    aLossIsReported();
    anErrorOfTheServerClosesTheConnection();
    thereAreNoConditions();
    admin.close();
    System.out.println("all passed");
  }
}
