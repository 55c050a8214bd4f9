// A worker of the benchmark beside this folder, for locks in Go. README.md there describes the protocol.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Load is what it is told to do.
type Load struct {
	Shape   string
	Writes  int
	Clients int
	Tasks   int
	Pause   time.Duration
	Warm    time.Duration
	Span    time.Duration
	Lease   time.Duration
}

// Outcome is what it answers.
type Outcome struct {
	LatenciesNs []int64 `json:"latencies_ns"`
	Served      []int   `json:"served"`
	ElapsedNs   int64   `json:"elapsed_ns"`
	CPUNs       int64   `json:"cpu_ns"`
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		serve()
		return
	}
	lock := flag.String("lock", "", "which lock")
	urls := flag.String("urls", "", "servers")
	shape := flag.String("shape", "own", "own, hot or wake")
	writes := flag.Int("writes", 100, "of a hundred")
	clients := flag.Int("clients", 1, "objects with connections of their own")
	tasks := flag.Int("tasks", 1, "goroutines")
	pause := flag.Int("pause-ms", 0, "before the other leaves")
	warm := flag.Int("warm-ms", 0, "before it is ready")
	span := flag.Int("span-ms", 1000, "of the load")
	lease := flag.Int("lease-ms", 30000, "of a lock")
	flag.Parse()
	ms := func(count int) time.Duration { return time.Duration(count) * time.Millisecond }
	load := Load{*shape, *writes, *clients, *tasks, ms(*pause), ms(*warm), ms(*span), ms(*lease)}
	peers := make([]Peer, load.Clients)
	for i := range peers {
		peers[i] = connect(*lock, strings.Split(*urls, ","), load.Lease)
	}
	warming := load
	warming.Shape, warming.Span, warming.Tasks = "own", load.Warm, max(load.Tasks, load.Clients)
	carry(peers, warming)

	say(map[string]string{"ready": versions(*lock)})
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		fail(err)
	}
	began, used := time.Now(), cpu()
	latencies := carry(peers, load)
	outcome := Outcome{ElapsedNs: int64(time.Since(began)), CPUNs: int64(cpu() - used)}
	outcome.LatenciesNs, outcome.Served = []int64{}, []int{}
	for _, ofTask := range latencies {
		outcome.Served = append(outcome.Served, len(ofTask))
		outcome.LatenciesNs = append(outcome.LatenciesNs, ofTask...)
	}
	say(outcome)
}

func connect(lock string, urls []string, lease time.Duration) Peer {
	switch lock {
	case "redsync":
		return NewRedsync(urls[0], lease)
	case "dsync":
		return NewDsync(urls)
	}
	fail(fmt.Errorf("%s is no lock of this program", lock))
	return nil
}

// Processor time of the process, user and system.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Of the lock and of what carries it, as go.sum has them.
func versions(lock string) string {
	paths := map[string][]string{"redsync": {"redsync", "go-redis"}, "dsync": {"minio/dsync"}}[lock]
	info, _ := debug.ReadBuildInfo()
	var all []string
	for _, module := range info.Deps {
		isPart := func(path string) bool { return strings.Contains(module.Path, path) }
		if slices.ContainsFunc(paths, isPart) {
			all = append(all, module.Path+" "+module.Version)
		}
	}
	return strings.Join(append(all, info.GoVersion), ", ")
}

func say(what any) {
	line, err := json.Marshal(what)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
