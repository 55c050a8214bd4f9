package peers;

import java.util.Map;

/** What the worker is told to do. */
record Load(
    String shape, int writes, int clients, int tasks, long pauseMs, long warmMs, long spanMs, long leaseMs) {

  static Load of(Map<String, String> values) {
    return new Load(
        values.get("--shape"),
        Integer.parseInt(values.get("--writes")),
        Integer.parseInt(values.get("--clients")),
        Integer.parseInt(values.get("--tasks")),
        Long.parseLong(values.get("--pause-ms")),
        Long.parseLong(values.get("--warm-ms")),
        Long.parseLong(values.get("--span-ms")),
        Long.parseLong(values.get("--lease-ms")));
  }

  /** Each task takes and gives back locks of its own for a while. */
  Load warmingUp() {
    return new Load("own", writes, clients, Math.max(tasks, clients), pauseMs, 0, warmMs, leaseMs);
  }
}
