import io.lettuce.core.ClientOptions;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.IntegerOutput;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.stream.Stream;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.data.redis.connection.lettuce.LettuceClientConfiguration;
import org.springframework.data.redis.connection.lettuce.LettuceConnection;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.stereotype.Component;

/** Runs work under locks that the server renews while their connections are open. */
@Component
public class LockTemplate implements DisposableBean {
  private static final Duration WAIT = Duration.ofSeconds(10);
  private static final Duration LEASE = Duration.ofSeconds(30);

  /** Each lock has its own connection, not the shared one of the application, and without reconnecting. */
  private final LettuceConnectionFactory connections;

  public LockTemplate(LettuceConnectionFactory application) {
    LettuceClientConfiguration client = LettuceClientConfiguration.builder()
        .commandTimeout(WAIT.plusSeconds(5)) // longer than BLOCK
        .clientOptions(ClientOptions.builder().autoReconnect(false).build())
        .build();
    connections = new LettuceConnectionFactory(application.getStandaloneConfiguration(), client);
    connections.setShareNativeConnection(false);
    connections.afterPropertiesSet();
  }

  /** Returns the result of the work. LockLostException: the lock was lost before its end. */
  public <T> T holding(String key, Function<Held, T> work) throws TimeoutException {
    try (Held held = new Held((LettuceConnection) connections.getConnection(), key)) {
      T result = work.apply(held);
      held.release();
      return result;
    }
  }

  @Override
  public void destroy() {
    connections.destroy();
  }

  /** Another owner may hold the lock. Stop the protected work. */
  public static class LockLostException extends RuntimeException {
    LockLostException(String key) {
      super(key);
    }
  }

  /** A lock that is held as far as this client knows. */
  public static final class Held implements AutoCloseable {
    private final LettuceConnection own;
    private final String key;
    private final String owner = UUID.randomUUID().toString(); // of this hold, not of this process
    private final Long fence;

    private Held(LettuceConnection own, String key) throws TimeoutException {
      this.own = own;
      this.key = key;
      try {
        fence = call("LOCK.ACQUIRE", key, owner, "PX", "" + LEASE.toMillis(), "BLOCK", "" + WAIT.toMillis(), "WATCHDOG");
        if (fence == null) throw new TimeoutException(key);
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
      if (!fence.equals(call("LOCK.HELD", key, owner))) throw new LockLostException(key);
    }

    private void release() {
      if (call("LOCK.RELEASE", key, owner, "ALL") == null) throw new LockLostException(key);
    }

    /** Closes the connection. The server then releases the lock, if it is still held. */
    @Override
    public void close() {
      own.close();
    }

    /** Without a named output, Spring reads the reply of an unknown command as a string. */
    private Long call(String command, String... arguments) {
      byte[][] bytes = Stream.of(arguments).map(text -> text.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
      return (Long) own.execute(command, new IntegerOutput<>(ByteArrayCodec.INSTANCE), bytes);
    }
  }
}
