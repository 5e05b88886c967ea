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
	// ErrTimeout: another owner held the lock for the whole waiting time.
	ErrTimeout = errors.New("the lock was not free in time")
	// ErrLost: another owner may hold the lock. Stop the protected work.
	ErrLost = errors.New("the lock is lost")
)

// Lock is a lock that the server renews while its connection is open.
type Lock struct {
	Fence      int64 // the fencing token: send it with each protected write
	key, owner string
	own        *redis.Client
}

// Acquire waits for the lock. Call `defer lock.Close()` at once.
func Acquire(ctx context.Context, client *redis.Client, key string, lease, wait time.Duration) (*Lock, error) {
	options := *client.Options()
	options.PoolSize, options.MinIdleConns = 1, 0            // one connection for this hold alone: the hold is bound to it
	options.ConnMaxIdleTime, options.ConnMaxLifetime = -1, 0 // another connection never replaces it
	options.ReadTimeout = wait + 5*time.Second               // longer than BLOCK
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

// Check returns an error unless the lock is held. Call it before each protected step.
func (lock *Lock) Check(ctx context.Context) error {
	return unlessNil(lock.own.Do(ctx, "LOCK.HELD", lock.key, lock.owner).Err(), ErrLost)
}

// Release releases the lock. ErrLost: the lock was lost before.
func (lock *Lock) Release(ctx context.Context) error {
	return unlessNil(lock.own.Do(ctx, "LOCK.RELEASE", lock.key, lock.owner, "ALL").Err(), ErrLost)
}

// Close closes the connection. The server then releases the lock, if it is still held.
func (lock *Lock) Close() error {
	return lock.own.Close()
}

// WithRenewed runs work while a goroutine renews the lock at a third of its lease, on any connection. The context of work
// is canceled when the lock is lost, or when no renewal succeeded in time.
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
		asked := time.Now() // before the request, so the local end is never later than the server's
		err := client.WithTimeout(lease/3).Do(held, "LOCK.RENEW", key, owner, "PX", lease.Milliseconds()).Err()
		if err == nil {
			end.Reset(time.Until(asked.Add(lease)))
		}
		return err
	}
	if err := renew(); err != nil { // the lease began when the request was served; after this, its end is known
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
			case <-tick.C: // after a failure, the next attempt follows a third of the lease later
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

// unlessNil returns err, except redis.Nil, which is a reply and no failure.
func unlessNil(err, meant error) error {
	if errors.Is(err, redis.Nil) {
		return meant
	}
	return err
}

// unique returns the owner of one hold. With one owner for the process, all its goroutines would hold the lock together.
func unique() string {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes[:])
}
