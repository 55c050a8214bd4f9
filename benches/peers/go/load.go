package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Who wants a lock when a turn is over may wait so much longer for it: then it counts as not served.
const grace = 100 * time.Millisecond

// Mode is how a lock is held.
type Mode int

const (
	// Write keeps everybody else out.
	Write Mode = iota
	// Read keeps writers out.
	Read
)

// Peer is one client: what a process has that uses this lock.
type Peer interface {
	// Enter waits for the lock, and returns how it is given back.
	Enter(ctx context.Context, mode Mode, name string) (leave func(), err error)
}

// carry returns how long each took, of each task.
func carry(peers []Peer, load Load) [][]int64 {
	until := time.Now().Add(load.Span)
	if load.Shape == "wake" {
		return [][]int64{wake(peers, load.Pause, until)}
	}
	latencies := make([][]int64, load.Tasks)
	var tasks sync.WaitGroup
	for task := range load.Tasks {
		tasks.Go(func() {
			name := "hot"
			if load.Shape == "own" {
				name = fmt.Sprintf("own %d", task)
			}
			for {
				took, served := once(peers[task%len(peers)], load, name, until)
				if !served {
					return
				}
				latencies[task] = append(latencies[task], int64(took))
			}
		})
	}
	tasks.Wait()
	return latencies
}

func once(peer Peer, load Load, name string, until time.Time) (time.Duration, bool) {
	asked := time.Now()
	if !asked.Before(until) {
		return 0, false
	}
	ctx := context.Background()
	if load.Shape == "hot" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until.Add(grace))
		defer cancel()
	}
	leave, err := peer.Enter(ctx, mode(load.Writes), name)
	if err != nil {
		if load.Shape == "own" {
			fail(err)
		}
		return 0, false
	}
	entered := time.Since(asked)
	leave()
	if load.Shape == "own" {
		return time.Since(asked), true
	}
	return entered, true
}

func mode(writes int) Mode {
	if rand.IntN(100) < writes {
		return Write
	}
	return Read
}

// wake tells how long after the other began to leave a waiter was inside.
func wake(peers []Peer, pause time.Duration, until time.Time) []int64 {
	latencies := []int64{}
	for turn := 0; time.Now().Before(until); turn++ {
		leaves, waits := peers[turn%2], peers[(turn+1)%2]
		leave, err := leaves.Enter(context.Background(), Write, "door")
		if err != nil {
			fail(err)
		}
		entered := make(chan time.Time)
		go func() {
			leave, err := waits.Enter(context.Background(), Write, "door")
			if err != nil {
				fail(err)
			}
			now := time.Now()
			leave()
			entered <- now
		}()
		time.Sleep(pause)
		left := time.Now()
		leave()
		latencies = append(latencies, max(0, int64((<-entered).Sub(left))))
	}
	return latencies
}
