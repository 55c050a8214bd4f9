package main

import (
	"bufio"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"sync"
	"sync/atomic"

	"github.com/minio/dsync/v3"
)

const (
	serviceName = "Dsync"
	writeLock   = -1
)

// LockServer is what dsync's README asks of a lock server: it keeps the locks in its memory, without leases.
type LockServer struct {
	mutex sync.Mutex
	// Number of readers of each lock that is held, or writeLock.
	locks map[string]int
	calls atomic.Int64
}

// Used is what a lock server answers to a line.
type Used struct {
	Calls int64 `json:"calls"`
	CPUNs int64 `json:"cpu_ns"`
}

// serve says its address, answers each line with what it has used so far, and ends with its input.
func serve() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	locks := &LockServer{locks: map[string]int{}}
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, locks); err != nil {
		fail(err)
	}
	go server.Accept(listener)
	say(map[string]string{"ready": listener.Addr().String()})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		say(Used{locks.calls.Load(), int64(cpu())})
	}
}

// Lock grants a lock that nobody holds.
func (s *LockServer) Lock(args *dsync.LockArgs, granted *bool) error {
	s.calls.Add(1)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.locks[args.Resource] == 0 {
		s.locks[args.Resource] = writeLock
		*granted = true
	}
	return nil
}

// RLock grants a lock that no writer holds.
func (s *LockServer) RLock(args *dsync.LockArgs, granted *bool) error {
	s.calls.Add(1)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.locks[args.Resource] != writeLock {
		s.locks[args.Resource]++
		*granted = true
	}
	return nil
}

// Unlock takes a writer out.
func (s *LockServer) Unlock(args *dsync.LockArgs, released *bool) error {
	s.calls.Add(1)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.locks[args.Resource] != writeLock {
		return fmt.Errorf("no writer holds %s", args.Resource)
	}
	delete(s.locks, args.Resource)
	*released = true
	return nil
}

// RUnlock takes a reader out.
func (s *LockServer) RUnlock(args *dsync.LockArgs, released *bool) error {
	s.calls.Add(1)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch held := s.locks[args.Resource]; {
	case held < 1:
		return fmt.Errorf("no reader holds %s", args.Resource)
	case held == 1:
		delete(s.locks, args.Resource)
	default:
		s.locks[args.Resource] = held - 1
	}
	*released = true
	return nil
}
