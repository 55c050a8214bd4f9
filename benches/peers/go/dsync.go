package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/rpc"
	"sync/atomic"

	"github.com/minio/dsync/v3"
)

// Dsync is one client of five lock servers. A majority of them grants a lock, and a waiter asks again after up to a second.
type Dsync struct {
	servers *dsync.Dsync
	// Begins the ids of this client's acquisitions.
	id   string
	next atomic.Int64
}

// NewDsync connects to all lock servers.
func NewDsync(addresses []string) *Dsync {
	var all []dsync.NetLocker
	for _, address := range addresses {
		connection, err := rpc.Dial("tcp", address)
		if err != nil {
			fail(err)
		}
		all = append(all, netLocker{connection, address})
	}
	servers, err := dsync.New(all)
	if err != nil {
		fail(err)
	}
	return &Dsync{servers: servers, id: fmt.Sprintf("%016x", rand.Uint64())}
}

// Enter waits for the lock. The module itself gives up only between its tries, so a deadline ends the wait from outside.
func (d *Dsync) Enter(ctx context.Context, mode Mode, name string) (func(), error) {
	mutex := dsync.NewDRWMutex(context.Background(), name, d.servers)
	lock, unlock := mutex.Lock, mutex.Unlock
	if mode == Read {
		lock, unlock = mutex.RLock, mutex.RUnlock
	}
	id := fmt.Sprintf("%s-%d", d.id, d.next.Add(1))
	if ctx.Done() == nil {
		lock(id, source)
		return unlock, nil
	}
	granted := make(chan struct{})
	go func() {
		lock(id, source)
		close(granted)
	}()
	select {
	case <-granted:
		return unlock, nil
	case <-ctx.Done():
		go func() {
			<-granted
			unlock()
		}()
		return nil, ctx.Err()
	}
}

// A caller tells the lock servers where in its code it asks.
const source = "load.go"

// netLocker is one lock server, over a connection on which calls overtake each other.
type netLocker struct {
	connection *rpc.Client
	address    string
}

func (n netLocker) call(method string, args dsync.LockArgs) (granted bool, err error) {
	err = n.connection.Call(serviceName+"."+method, &args, &granted)
	return granted, err
}

func (n netLocker) RLock(args dsync.LockArgs) (bool, error)   { return n.call("RLock", args) }
func (n netLocker) Lock(args dsync.LockArgs) (bool, error)    { return n.call("Lock", args) }
func (n netLocker) RUnlock(args dsync.LockArgs) (bool, error) { return n.call("RUnlock", args) }
func (n netLocker) Unlock(args dsync.LockArgs) (bool, error)  { return n.call("Unlock", args) }
func (n netLocker) String() string                            { return n.address }
func (n netLocker) Close() error                              { return n.connection.Close() }
