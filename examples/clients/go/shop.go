package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Sell returns the available quantity, or a code: -1 sold out, -2 over the user's limit. A repetition with the same order sells once.
//
// If a connection breaks, go-redis sends the command again. If that fails, the order may be sold: keep its id and
// repeat the request later.
func Sell(ctx context.Context, client redis.UniversalClient, sku string, qty int, order, user string) (int64, error) {
	return client.Do(ctx, "STOCK.DEDUCT", sku, qty, "ORDER", order, "USER", user).Int64()
}

// MayExist returns false if the name certainly does not exist. True: query the database.
func MayExist(ctx context.Context, client redis.UniversalClient, name string) (bool, error) {
	return client.Do(ctx, "BF.EXISTS", "names", name).Bool() // 1 in RESP2, true in RESP3
}

// ErrLoader: the loader failed a moment ago, so it is unknown whether there is a value.
var ErrLoader = errors.New("the loader has failed")

// Cached returns the value, or nil if there is none. One caller at a time calls load. BLOCK is less than ReadTimeout.
func Cached(ctx context.Context, client redis.UniversalClient, key string,
	load func(context.Context, string) (any, error)) (any, error) {
	for {
		reply, err := client.Do(ctx, "CACHE.FETCH", key, "LEASE", 3000, "BLOCK", 2000).Slice()
		if err != nil {
			return nil, err
		}
		state, value, token := reply[0], reply[1], reply[2]
		if state == "WAIT" {
			continue // another caller has been loading for more than two seconds
		}
		if state != "LEASE" {
			if state == "DOWN" && value == nil {
				return nil, ErrLoader
			}
			if state == "MISS" && value == nil {
				return load(ctx, key) // a replica: it grants no leases
			}
			return value, nil // HIT, STALE, DOWN or MISS with an old value; nil for NULL and ABSENT
		}
		loaded, err := load(ctx, key)
		if err != nil {
			client.Do(ctx, "CACHE.FAIL", key, token, "BACKOFF", 1000)
			return nil, err
		}
		if loaded == nil {
			return nil, client.Do(ctx, "CACHE.SETNULL", key, "PX", 5000, "TOKEN", token).Err()
		}
		return loaded, client.Do(ctx, "CACHE.SET", key, loaded, "PX", 60000, "JITTER", 10, "TOKEN", token).Err()
	}
}

// Once returns the result of work. One caller at a time works, and the result is stored for a day. Choose a lease that is
// longer than the longest work. The token is a fence for what work changes. If the key was used with another fingerprint, the call
// fails with CONFLICT.
func Once(ctx context.Context, client redis.UniversalClient, key, fingerprint string, lease time.Duration,
	work func(ctx context.Context, token int64) (string, error)) (string, error) {
	begin := []any{"ONCE.BEGIN", key, "LEASE", lease.Milliseconds(), "BLOCK", 2000}
	if fingerprint != "" {
		begin = append(begin, "FINGERPRINT", fingerprint)
	}
	for {
		reply, err := client.Do(ctx, begin...).Slice()
		if err != nil {
			return "", err
		}
		switch reply[0] {
		case "BUSY":
			continue // another caller has been working for more than two seconds
		case "DONE":
			return reply[1].(string), nil
		}
		token := reply[2].(int64)
		result, err := work(ctx, token)
		if err != nil {
			client.Do(ctx, "ONCE.FAIL", key, token)
			return "", err
		}
		isStored, err := client.Do(ctx, "ONCE.DONE", key, token, result, "PX", (24 * time.Hour).Milliseconds()).Bool()
		if err == nil && !isStored {
			err = ErrLost // the lease ended before the work
		}
		return result, err
	}
}

// RetryAfter returns zero if the request is allowed, else the time to wait: 10 requests a second, 20 more after a quiet time.
func RetryAfter(ctx context.Context, client redis.UniversalClient, user string) (time.Duration, error) {
	reply, err := client.Do(ctx, "RATE.GCRA", "limit:"+user, 20, 10, 1000).Int64Slice()
	if err != nil || reply[0] == 0 {
		return 0, err
	}
	return time.Duration(reply[3]) * time.Millisecond, nil
}

// TransferLocks acquires two locks in one hash slot. SetFirstKeyPos names the key: by default go-redis uses the first argument.
func TransferLocks(ctx context.Context, client redis.UniversalClient, from, to, owner string) ([]int64, error) {
	command := redis.NewIntSliceCmd(ctx, "LOCK.MACQUIRE", 2, from, to, owner, "ID", owner)
	command.SetFirstKeyPos(2)
	err := client.Process(ctx, command)
	if errors.Is(err, redis.Nil) {
		return nil, ErrTimeout
	}
	return command.Val(), err
}
