// Library that LD_PRELOAD loads into a server. The server's time of day is then the machine's time plus an offset. The
// test that owns the server sets this offset in a file. Clocks that only count, such as CLOCK_MONOTONIC, do not change.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// One byte selects the offset, because a read never sees half of a written byte.
struct offsets {
  int64_t us[2];
  uint8_t which;
};

static const struct offsets *offsets;

__attribute__((constructor)) static void attach(void) {
  const char *path = getenv("TESTENV_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offsets, PROT_READ, MAP_SHARED, file, 0);
  if (map == MAP_FAILED) abort(); // a server with another clock would be worse than no server
  close(file);
  offsets = map;
}

static int64_t now_us(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  int64_t us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
  // Before `attach` there is no offset. An allocator may read the time that early.
  return offsets ? us + offsets->us[__atomic_load_n(&offsets->which, __ATOMIC_ACQUIRE) & 1] : us;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return (int)syscall(SYS_clock_gettime, id, now);
  int64_t us = now_us();
  now->tv_sec = us / 1000000;
  now->tv_nsec = us % 1000000 * 1000;
  return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  int64_t us = now_us();
  now->tv_sec = us / 1000000;
  now->tv_usec = us % 1000000;
  return 0;
}

time_t time(time_t *now) {
  time_t s = now_us() / 1000000;
  if (now) *now = s;
  return s;
}
