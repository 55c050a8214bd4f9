package beside;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;

/**
 * Takes the lock again and again, and tells a register when it is inside. The register is the test itself, which no fault reaches.
 * It answers whether others are inside that must not be. Arguments: the register's port, the time in ms, percent of writes.
 */
final class Work {
  private static final long PATIENCE_MS = 2000;

  private final String name;
  private final RReadWriteLock both;
  private final int port;
  private final long spanMs;
  private final int writes;

  Work(String name, RReadWriteLock both, List<String> words) {
    this.name = name;
    this.both = both;
    port = Integer.parseInt(words.get(0));
    spanMs = Long.parseLong(words.get(1));
    writes = Integer.parseInt(words.get(2));
  }

  String run() throws Exception {
    long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(spanMs);
    int turns = 0;
    try (Register register = new Register(port)) {
      while (System.nanoTime() < until) {
        boolean isWriter = ThreadLocalRandom.current().nextInt(100) < writes;
        RLock lock = isWriter ? both.writeLock() : both.readLock();
        try {
          if (!lock.tryLock(PATIENCE_MS, -1, TimeUnit.MILLISECONDS)) {
            continue;
          }
        } catch (RuntimeException lostReply) {
          // Whether the thread has the lock is not known. If it has, the server keeps it for the watchdog's time.
          continue;
        }
        register.ask("enter " + name + " " + (isWriter ? "w" : "r"));
        Thread.sleep(ThreadLocalRandom.current().nextInt(5));
        register.ask("leave " + name);
        turns++;
        try {
          lock.unlock();
        } catch (RuntimeException lostReply) {
          // The same.
        }
      }
    }
    return "turns " + turns;
  }

  private static final class Register implements AutoCloseable {
    private final Socket socket;
    private final BufferedReader in;
    private final OutputStream out;

    Register(int port) throws Exception {
      socket = new Socket("127.0.0.1", port);
      in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
      out = socket.getOutputStream();
    }

    void ask(String line) throws Exception {
      out.write((line + "\n").getBytes(StandardCharsets.UTF_8));
      out.flush();
      String reply = in.readLine();
      if (!"ok".equals(reply)) {
        throw new IllegalStateException("the register answered " + reply);
      }
    }

    @Override
    public void close() throws Exception {
      socket.close();
    }
  }
}
