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

// Hold is a lock that this client holds, as far as it knows.
type Hold struct {
	Fence      int64 // the fencing token: send it with each protected write
	key, owner string
	client     *redis.Client
}

// Check returns an error unless the lock is held. Call it before each protected step.
func (hold *Hold) Check(ctx context.Context) error {
	return unlessNil(hold.client.Do(ctx, "LOCK.HELD", hold.key, hold.owner).Err(), ErrLost)
}

// Lock is a hold that the server renews while its connection is open.
type Lock struct {
	Hold
}

// Acquire waits for the lock. With a wait of zero, it does not wait. Call `defer lock.Close()` at once.
func Acquire(ctx context.Context, client *redis.Client, key string, lease, wait time.Duration) (*Lock, error) {
	options := *client.Options()
	options.PoolSize, options.MinIdleConns = 1, 0            // one connection for this hold alone: the hold is bound to it
	options.ConnMaxIdleTime, options.ConnMaxLifetime = -1, 0 // another connection never replaces it
	options.ReadTimeout = wait + 5*time.Second               // longer than BLOCK
	options.MaxRetries = -1                                  // a repeated release would seem to be a loss
	lock := &Lock{Hold{key: key, owner: unique(), client: redis.NewClient(&options)}}
	if err := lock.acquire(ctx, lock.client, lease, wait, "WATCHDOG"); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

// Release releases the lock. ErrLost: the lock was lost before.
func (lock *Lock) Release(ctx context.Context) error {
	return lock.release(ctx, lock.client)
}

// Close closes the connection. The server then releases the lock, if it is still held.
func (lock *Lock) Close() error {
	return lock.client.Close()
}

// maxPause is the longest time between two renewals: a renewal also learns that the lock was removed.
const maxPause = 10 * time.Second

// WithRenewed runs work while a goroutine renews the lock at a third of its lease, on any connection. The context of work
// is canceled when the lock is lost, or when no renewal succeeded in time.
func WithRenewed(ctx context.Context, client *redis.Client, key string, lease, wait time.Duration,
	work func(ctx context.Context, hold *Hold) error) error {
	hold := &Hold{key: key, owner: unique(), client: client}
	if err := hold.acquire(ctx, client.WithTimeout(wait+5*time.Second), lease, wait); err != nil {
		return err
	}
	options := *client.Options()
	options.MaxRetries = -1 // a repeated release would seem to be a loss
	once := redis.NewClient(&options)
	defer once.Close()
	held, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.AfterFunc(lease, cancel)
	defer end.Stop()
	pause := lease / 3
	if pause > maxPause {
		pause = maxPause
	}
	renew := func() error {
		asked := time.Now() // before the request, so the local end is never later than the server's
		err := client.WithTimeout(pause).Do(held, "LOCK.RENEW", key, hold.owner, "PX", lease.Milliseconds()).Err()
		if err == nil {
			end.Reset(time.Until(asked.Add(lease)))
		}
		return err
	}
	if err := renew(); err != nil { // the lease began when the request was served; after this, its end is known
		hold.release(context.Background(), once)
		return unlessNil(err, ErrLost)
	}
	go func() {
		defer cancel()
		for tick := time.NewTicker(pause); ; {
			select {
			case <-held.Done():
				tick.Stop()
				return
			case <-tick.C: // after a failure, the next attempt follows after the same pause
				if errors.Is(renew(), redis.Nil) {
					return
				}
			}
		}
	}()
	err := work(held, hold)
	if err == nil && held.Err() != nil {
		err = ErrLost
	}
	if released := hold.release(context.Background(), once); err == nil {
		err = released
	}
	return err
}

// acquire sends the request. A repetition with the same id is counted once.
func (hold *Hold) acquire(ctx context.Context, client *redis.Client, lease, wait time.Duration, options ...any) error {
	words := []any{"LOCK.ACQUIRE", hold.key, hold.owner, "PX", lease.Milliseconds(), "ID", hold.owner}
	if ms := wait.Milliseconds(); ms > 0 { // BLOCK 0 is without limit
		words = append(words, "BLOCK", ms)
	}
	fence, err := client.Do(ctx, append(words, options...)...).Int64()
	hold.Fence = fence
	return unlessNil(err, ErrTimeout)
}

func (hold *Hold) release(ctx context.Context, client *redis.Client) error {
	return unlessNil(client.Do(ctx, "LOCK.RELEASE", hold.key, hold.owner, "ALL").Err(), ErrLost)
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
