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
 * Takes the lock again and again, and tells a register when it is inside: a server that no fault of the test reaches. The register
 * answers whether it conflicts with who is inside. Arguments: the register's port, the time in ms, percent of writes.
 */
final class Work {
  private final String name;
  private final RReadWriteLock both;
  private final int port;
  private final long spanMs;
  private final int writes;

  Work(String name, RLock lock, RReadWriteLock both, List<String> words) {
    this.name = name;
    this.both = both;
    port = Integer.parseInt(words.get(0));
    spanMs = Long.parseLong(words.get(1));
    writes = Integer.parseInt(words.get(2));
  }

  String run() throws Exception {
    long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(spanMs);
    int turns = 0;
    int failed = 0;
    try (Register register = new Register(port)) {
      while (System.nanoTime() < until) {
        boolean isWriter = ThreadLocalRandom.current().nextInt(100) < writes;
        RLock lock = isWriter ? both.writeLock() : both.readLock();
        boolean taken;
        try {
          taken = lock.tryLock(2000, -1, TimeUnit.MILLISECONDS);
        } catch (RuntimeException lostReply) {
          // Whether it has the lock is not known: an owner of Redisson has to wait until its watchdog would have let go.
          failed++;
          continue;
        }
        if (!taken) {
          continue;
        }
        register.enter(name, isWriter ? "w" : "r");
        Thread.sleep(ThreadLocalRandom.current().nextInt(5));
        register.leave(name);
        turns++;
        try {
          lock.unlock();
        } catch (RuntimeException lostReply) {
          failed++;
        }
      }
    }
    return "turns " + turns + " failed " + failed;
  }

  /** Connection to the register, without Redisson: the scripts are the register's own. */
  private static final class Register implements AutoCloseable {
    private final Socket socket;
    private final BufferedReader in;
    private final OutputStream out;

    Register(int port) throws Exception {
      socket = new Socket("127.0.0.1", port);
      in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
      out = socket.getOutputStream();
    }

    void enter(String name, String mode) throws Exception {
      ask("FCALL", "enter", "0", name, mode);
    }

    void leave(String name) throws Exception {
      ask("FCALL", "leave", "0", name);
    }

    private void ask(String... words) throws Exception {
      StringBuilder command = new StringBuilder("*" + words.length + "\r\n");
      for (String word : words) {
        command.append("$").append(word.getBytes(StandardCharsets.UTF_8).length).append("\r\n").append(word).append("\r\n");
      }
      out.write(command.toString().getBytes(StandardCharsets.UTF_8));
      out.flush();
      String reply = in.readLine();
      if (!reply.equals("+OK")) {
        throw new IllegalStateException("the register answered " + reply);
      }
    }

    @Override
    public void close() throws Exception {
      socket.close();
    }
  }
}
