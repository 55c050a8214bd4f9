package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// Redsync is a lock on one node, as it comes but for its number of tries: nobody here gives up.
type Redsync struct {
	sync  *redsync.Redsync
	lease time.Duration
}

// NewRedsync connects at first use.
func NewRedsync(url string, lease time.Duration) *Redsync {
	options, err := redis.ParseURL(url)
	if err != nil {
		fail(err)
	}
	return &Redsync{redsync.New(goredis.NewPool(redis.NewClient(options))), lease}
}

// Enter waits for the lock, which has no readers.
func (r *Redsync) Enter(ctx context.Context, _ Mode, name string) (func(), error) {
	mutex := r.sync.NewMutex(name, redsync.WithExpiry(r.lease), redsync.WithTries(1<<30))
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() {
		if ok, err := mutex.Unlock(); !ok {
			fail(errors.Join(errors.New("not released"), err))
		}
	}, nil
}
