package peers;

import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** One client of RReadWriteLock or of a multi-lock of three of them, with the settings that it comes with but for the lease, which its watchdog renews. */
final class Client {
  private final RedissonClient redisson;
  private final Kind kind;

  /** What a name stands for. */
  enum Kind {
    ONE_LOCK,
    THREE_LOCKS;

    static Kind of(String lock) {
      return switch (lock) {
        case "redisson" -> ONE_LOCK;
        case "redisson-three" -> THREE_LOCKS;
        default -> throw new IllegalArgumentException(lock + " is no lock of this program");
      };
    }
  }

  Client(String url, long leaseMs, Kind kind) {
    this.kind = kind;
    Config config = new Config();
    config.setLockWatchdogTimeout(leaseMs);
    config.useSingleServer().setAddress(url);
    redisson = Redisson.create(config);
  }

  private RLock lock(boolean writes, String name) {
    if (kind == Kind.THREE_LOCKS) {
      return redisson.getMultiLock(one(writes, name + " a"), one(writes, name + " b"), one(writes, name + " c"));
    }
    return one(writes, name);
  }

  private RLock one(boolean writes, String name) {
    RReadWriteLock lock = redisson.getReadWriteLock(name);
    return writes ? lock.writeLock() : lock.readLock();
  }

  RLock enter(boolean writes, String name) {
    RLock lock = lock(writes, name);
    lock.lock();
    return lock;
  }

  /** Null when the time is over. */
  RLock enterWithin(boolean writes, String name, long ns) throws InterruptedException {
    RLock lock = lock(writes, name);
    return lock.tryLock(ns, TimeUnit.NANOSECONDS) ? lock : null;
  }
}
