package beside;

import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;

/** A thread of a client, which does what it is told, one command after the other. */
final class Actor {
  private final String name;
  private final RedissonClient redisson;
  private final ExecutorService thread = Executors.newSingleThreadExecutor();

  Actor(String name, RedissonClient redisson) {
    this.name = name;
    this.redisson = redisson;
  }

  void tell(List<String> words) {
    thread.execute(
        () -> {
          String result;
          try {
            result = carryOut(words);
          } catch (Throwable error) {
            result = "error " + error.getClass().getSimpleName() + " " + String.valueOf(error.getMessage()).replace('\n', ' ');
          }
          Main.say(name, result);
        });
  }

  /** The words are a verb, `r` or `w`, the name of the lock, and numbers. */
  private String carryOut(List<String> words) throws Exception {
    RReadWriteLock both = redisson.getReadWriteLock(words.get(2));
    RLock lock = words.get(1).equals("w") ? both.writeLock() : both.readLock();
    switch (words.get(0)) {
      case "lock":
        if (words.size() > 3) {
          lock.lock(Long.parseLong(words.get(3)), TimeUnit.MILLISECONDS);
        } else {
          lock.lock();
        }
        return "ok";
      case "try":
        long leaseMs = words.size() > 4 ? Long.parseLong(words.get(4)) : -1;
        return String.valueOf(lock.tryLock(Long.parseLong(words.get(3)), leaseMs, TimeUnit.MILLISECONDS));
      case "unlock":
        lock.unlock();
        return "ok";
      case "force":
        return String.valueOf(lock.forceUnlock());
      case "locked":
        return String.valueOf(lock.isLocked());
      case "mine":
        return String.valueOf(lock.isHeldByCurrentThread());
      case "count":
        return String.valueOf(lock.getHoldCount());
      case "left":
        return String.valueOf(lock.remainTimeToLive());
      case "work":
        return new Work(name, both, words.subList(3, words.size())).run();
      default:
        return "error unknown " + words.get(0);
    }
  }
}
