package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;

/** Threads that take and give back locks: a thread is what owns a lock here. */
final class Tasks {
  /** Who wants a lock when a turn is over may wait so much longer for it: then it counts as not served. */
  private static final long GRACE_NS = TimeUnit.MILLISECONDS.toNanos(100);

  private final List<Client> clients;

  Tasks(List<Client> clients) {
    this.clients = clients;
  }

  /** How long each took, of each task. */
  List<List<Long>> carry(Load load) throws Exception {
    long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(load.spanMs());
    if (load.shape().equals("wake")) {
      return List.of(wake(load.pauseMs(), until));
    }
    List<Callable<List<Long>>> tasks = new ArrayList<>();
    for (int i = 0; i < load.tasks(); i++) {
      int task = i;
      tasks.add(() -> repeat(clients.get(task % clients.size()), load, task, until));
    }
    ExecutorService threads = Executors.newFixedThreadPool(load.tasks());
    List<List<Long>> latencies = new ArrayList<>();
    for (Future<List<Long>> task : threads.invokeAll(tasks)) {
      latencies.add(task.get());
    }
    threads.shutdown();
    return latencies;
  }

  private static List<Long> repeat(Client client, Load load, int task, long until) throws InterruptedException {
    boolean isOwn = load.shape().equals("own");
    String name = isOwn ? "own " + task : "hot";
    List<Long> latencies = new ArrayList<>();
    for (long asked = System.nanoTime(); asked < until; asked = System.nanoTime()) {
      boolean writes = ThreadLocalRandom.current().nextInt(100) < load.writes();
      RLock lock = isOwn ? client.enter(writes, name) : client.enterWithin(writes, name, until - asked + GRACE_NS);
      if (lock == null) {
        break;
      }
      long entered = System.nanoTime() - asked;
      lock.unlock();
      latencies.add(isOwn ? System.nanoTime() - asked : entered);
    }
    return latencies;
  }

  /** How long after the other began to leave a waiter was inside. */
  private List<Long> wake(long pauseMs, long until) throws Exception {
    List<Long> latencies = new ArrayList<>();
    ExecutorService waits = Executors.newSingleThreadExecutor();
    for (int turn = 0; System.nanoTime() < until; turn++) {
      RLock lock = clients.get(turn % 2).enter(true, "door");
      Client other = clients.get((turn + 1) % 2);
      Future<Long> waiter =
          waits.submit(
              () -> {
                RLock granted = other.enter(true, "door");
                long entered = System.nanoTime();
                granted.unlock();
                return entered;
              });
      Thread.sleep(pauseMs);
      long left = System.nanoTime();
      lock.unlock();
      latencies.add(Math.max(0, waiter.get() - left));
    }
    waits.shutdown();
    return latencies;
  }
}
