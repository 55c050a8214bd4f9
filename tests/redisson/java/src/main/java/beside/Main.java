package beside;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * One client of Redisson. Each line of its input is the name of a thread, and a command for it. A thread answers each command with a
 * line: its name, a blank and the result. The threads of a name are one, since a thread is what owns a lock in Redisson.
 *
 * <p>Arguments: node | cluster | sentinel=NAME, the addresses with commas between them, the watchdog's time in ms.
 */
final class Main {
  private Main() {}

  public static void main(String[] arguments) throws Exception {
    RedissonClient redisson = Redisson.create(config(arguments[0], arguments[1].split(","), Long.parseLong(arguments[2])));
    Map<String, Actor> actors = new HashMap<>();
    say("ready", Redisson.class.getPackage().getImplementationVersion());
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      List<String> words = Arrays.asList(line.split(" "));
      actors.computeIfAbsent(words.get(0), name -> new Actor(name, redisson)).tell(words.subList(1, words.size()));
    }
    // Redisson's threads would go on. Its locks stay, as those of a process that has died.
    Runtime.getRuntime().halt(0);
  }

  static synchronized void say(String actor, String result) {
    System.out.println(actor + " " + result);
    System.out.flush();
  }

  private static Config config(String topology, String[] addresses, long watchdogMs) {
    Config config = new Config();
    config.setLockWatchdogTimeout(watchdogMs);
    // A fault of a server is over soon in these tests, and their machines are small.
    config.setThreads(4).setNettyThreads(4);
    if (topology.equals("cluster")) {
      config.useClusterServers().addNodeAddress(addresses).setScanInterval(500).setMasterConnectionMinimumIdleSize(2)
          .setSlaveConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1).setRetryAttempts(20);
    } else if (topology.startsWith("sentinel=")) {
      config.useSentinelServers().setMasterName(topology.substring(9)).addSentinelAddress(addresses).setScanInterval(500)
          .setCheckSentinelsList(false).setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(1)
          .setSubscriptionConnectionMinimumIdleSize(1).setRetryAttempts(20);
    } else {
      config.useSingleServer().setAddress(addresses[0]).setConnectionMinimumIdleSize(2).setRetryAttempts(20);
    }
    return config;
  }
}
