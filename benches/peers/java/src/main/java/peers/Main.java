package peers;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.redisson.api.RLock;

/** A worker of the benchmark beside this folder, for Redisson's RReadWriteLock and its multi-lock. README.md there describes the protocol. */
final class Main {
  private Main() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> values = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      values.put(arguments[i], arguments[i + 1]);
    }
    Client.Kind kind = Client.Kind.of(values.get("--lock"));
    Load load = Load.of(values);
    List<Client> clients = new ArrayList<>();
    for (int i = 0; i < load.clients(); i++) {
      clients.add(new Client(values.get("--urls").split(",")[0], load.leaseMs(), kind));
    }
    Tasks tasks = new Tasks(clients);
    if (load.shape().equals("held")) {
      hold(clients.get(0), load.tasks());
    } else {
      tasks.carry(load.warmingUp());
    }
    System.out.println("{\"ready\":\"" + versions() + "\"}");
    new BufferedReader(new InputStreamReader(System.in)).readLine();

    var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    long began = System.nanoTime();
    long used = system.getProcessCpuTime();
    List<List<Long>> latencies = List.of();
    if (load.shape().equals("held")) {
      Thread.sleep(load.spanMs());
    } else {
      latencies = tasks.carry(load);
    }
    long elapsed = System.nanoTime() - began;
    System.out.println(outcome(latencies, elapsed, system.getProcessCpuTime() - used));
    System.out.flush();
    // Redisson's threads would go on.
    Runtime.getRuntime().halt(0);
  }

  /** One thread takes them all: it is their owner, and they are renewed as long as its client lives. */
  private static void hold(Client client, int count) {
    for (int lock = 0; lock < count; lock++) {
      client.enter(true, "held " + lock);
    }
  }

  private static String versions() {
    String redisson = RLock.class.getPackage().getImplementationVersion();
    return "Redisson " + redisson + ", Java " + System.getProperty("java.version");
  }

  private static String outcome(List<List<Long>> latencies, long elapsed, long cpu) {
    String all = latencies.stream().flatMap(List::stream).map(String::valueOf).collect(Collectors.joining(","));
    String served = latencies.stream().map(List::size).map(String::valueOf).collect(Collectors.joining(","));
    return "{\"latencies_ns\":[" + all + "],\"served\":[" + served + "],\"elapsed_ns\":" + elapsed + ",\"cpu_ns\":" + cpu + "}";
  }
}
