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

/** Runs work under locks that the server renews for as long as their connections live. */
@Component
public class LockTemplate implements DisposableBean {
  private static final Duration WAIT = Duration.ofSeconds(10);
  private static final Duration LEASE = Duration.ofSeconds(30);

  /** Not the application's one shared connection: each lock has its own, which is not made again when it breaks. */
  private final LettuceConnectionFactory connections;

  public LockTemplate(LettuceConnectionFactory application) {
    LettuceClientConfiguration client = LettuceClientConfiguration.builder()
        .commandTimeout(WAIT.plusSeconds(5)) // not less than BLOCK
        .clientOptions(ClientOptions.builder().autoReconnect(false).build())
        .build();
    connections = new LettuceConnectionFactory(application.getStandaloneConfiguration(), client);
    connections.setShareNativeConnection(false);
    connections.afterPropertiesSet();
  }

  /** The result of the work. LockLostException: the lock was lost before its end. */
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

  /** The lock is, or may be, somebody else's: stop what it protects. */
  public static class LockLostException extends RuntimeException {
    LockLostException(String key) {
      super(key);
    }
  }

  /** A lock that is held, as far as we know. */
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

    /** For whatever the lock protects. */
    public long fence() {
      return fence;
    }

    /** Throws unless it is still held. Ask before each step that only the holder may take. */
    public void check() {
      if (!fence.equals(call("LOCK.HELD", key, owner))) throw new LockLostException(key);
    }

    private void release() {
      if (call("LOCK.RELEASE", key, owner, "ALL") == null) throw new LockLostException(key);
    }

    /** Closes the connection. If the lock was not released, it is free now. */
    @Override
    public void close() {
      own.close();
    }

    /** Without an output named, Spring takes the reply of a command that it does not know for a string. */
    private Long call(String command, String... arguments) {
      byte[][] bytes = Stream.of(arguments).map(text -> text.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
      return (Long) own.execute(command, new IntegerOutput<>(ByteArrayCodec.INSTANCE), bytes);
    }
  }
}
