package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrTimeout says that somebody else held the lock for as long as we were willing to wait.
	ErrTimeout = errors.New("the lock was not free in time")
	// ErrLost says that the lock is, or may be, somebody else's: stop what it protects.
	ErrLost = errors.New("the lock is lost")
)

// Lock is a lock that the server renews for as long as its connection lives.
type Lock struct {
	Fence      int64 // for whatever the lock protects
	key, owner string
	own        *redis.Client
}

// Acquire waits for the lock. Call `defer lock.Close()` at once.
func Acquire(ctx context.Context, client *redis.Client, key string, lease, wait time.Duration) (*Lock, error) {
	options := *client.Options()
	options.PoolSize, options.MinIdleConns = 1, 0            // one connection for this hold alone: it is bound to it
	options.ConnMaxIdleTime, options.ConnMaxLifetime = -1, 0 // and never replaced by another
	options.ReadTimeout = wait + 5*time.Second               // not less than BLOCK
	lock := &Lock{key: key, owner: unique(), own: redis.NewClient(&options)}
	fence, err := lock.own.Do(ctx, "LOCK.ACQUIRE", key, lock.owner, "PX", lease.Milliseconds(),
		"BLOCK", wait.Milliseconds(), "WATCHDOG", "ID", lock.owner).Int64()
	if err != nil {
		lock.Close()
		return nil, unlessNil(err, ErrTimeout)
	}
	lock.Fence = fence
	return lock, nil
}

// Check tells whether the lock is still held. Ask before each step that only the holder may take.
func (lock *Lock) Check(ctx context.Context) error {
	return unlessNil(lock.own.Do(ctx, "LOCK.HELD", lock.key, lock.owner).Err(), ErrLost)
}

// Release gives the lock back; ErrLost: it was not held until now.
func (lock *Lock) Release(ctx context.Context) error {
	return unlessNil(lock.own.Do(ctx, "LOCK.RELEASE", lock.key, lock.owner, "ALL").Err(), ErrLost)
}

// Close closes the connection. If the lock was not released, it is free now, whatever went wrong.
func (lock *Lock) Close() error {
	return lock.own.Close()
}

// WithRenewed runs work while a goroutine renews the lock at a third of its lease, on any connection. The context of work
// is cancelled when the lock is lost, or when nobody could tell in time that it is not.
func WithRenewed(ctx context.Context, client *redis.Client, key string, lease, wait time.Duration,
	work func(ctx context.Context, fence int64) error) error {
	owner := unique()
	fence, err := client.WithTimeout(wait+5*time.Second).Do(ctx, "LOCK.ACQUIRE", key, owner,
		"PX", lease.Milliseconds(), "BLOCK", wait.Milliseconds(), "ID", owner).Int64()
	if err != nil {
		return unlessNil(err, ErrTimeout)
	}
	release := func() error {
		return unlessNil(client.Do(context.Background(), "LOCK.RELEASE", key, owner, "ALL").Err(), ErrLost)
	}
	held, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.AfterFunc(lease, cancel)
	defer end.Stop()
	renew := func() error {
		asked := time.Now() // before the request: our clock is never later than the server's
		err := client.WithTimeout(lease/3).Do(held, "LOCK.RENEW", key, owner, "PX", lease.Milliseconds()).Err()
		if err == nil {
			end.Reset(time.Until(asked.Add(lease)))
		}
		return err
	}
	if err := renew(); err != nil { // the lease began when we were served; from here on we know when it ends
		release()
		return unlessNil(err, ErrLost)
	}
	go func() {
		defer cancel()
		for tick := time.NewTicker(lease / 3); ; {
			select {
			case <-held.Done():
				tick.Stop()
				return
			case <-tick.C: // if it cannot: again, a third of the lease later
				if errors.Is(renew(), redis.Nil) {
					return
				}
			}
		}
	}()
	err = work(held, fence)
	if err == nil && held.Err() != nil {
		err = ErrLost
	}
	if released := release(); err == nil {
		err = released
	}
	return err
}

// unlessNil is err, but for redis.Nil, which is an answer: then it is meant.
func unlessNil(err, meant error) error {
	if errors.Is(err, redis.Nil) {
		return meant
	}
	return err
}

// unique is the owner of one hold: not of this process, whose goroutines would all hold the lock together.
func unique() string {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes[:])
}
