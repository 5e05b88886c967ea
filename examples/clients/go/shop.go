package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Sell is what is left, or a code: -1 sold out, -2 over the user's limit. Called again with the same order, it sells once.
//
// go-redis sends it again by itself when a connection breaks. If it fails nevertheless, it may have been sold: keep the
// order, and ask again later.
func Sell(ctx context.Context, client redis.UniversalClient, sku string, qty int, order, user string) (int64, error) {
	return client.Do(ctx, "STOCK.DEDUCT", sku, qty, "ORDER", order, "USER", user).Int64()
}

// MayExist is false if nobody has this name, for sure. True: ask the database.
func MayExist(ctx context.Context, client redis.UniversalClient, name string) (bool, error) {
	return client.Do(ctx, "BF.EXISTS", "names", name).Bool() // 1 in RESP2, true in RESP3
}

// ErrLoader says that it could not be loaded a moment ago: nobody knows whether there is a value.
var ErrLoader = errors.New("the loader has failed")

// Cached is the value, or nil if there is none; load is called by one caller at a time. BLOCK is less than ReadTimeout.
func Cached(ctx context.Context, client redis.UniversalClient, key string,
	load func(context.Context, string) (any, error)) (any, error) {
	for {
		reply, err := client.Do(ctx, "CACHE.FETCH", key, "LEASE", 3000, "BLOCK", 2000).Slice()
		if err != nil {
			return nil, err
		}
		state, value, token := reply[0], reply[1], reply[2]
		if state == "WAIT" {
			continue // somebody else is loading, for more than two seconds now
		}
		if state != "LEASE" {
			if state == "DOWN" && value == nil {
				return nil, ErrLoader
			}
			return value, nil // HIT, STALE, and DOWN if there is an old one; nil for NULL and ABSENT
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

// RetryAfter is zero if the user may go on, else how long to wait: 10 a second, 20 more after a quiet time.
func RetryAfter(ctx context.Context, client redis.UniversalClient, user string) (time.Duration, error) {
	reply, err := client.Do(ctx, "RATE.GCRA", "limit:"+user, 20, 10, 1000).Int64Slice()
	if err != nil || reply[0] == 0 {
		return 0, err
	}
	return time.Duration(reply[3]) * time.Millisecond, nil
}

// TransferLocks takes two locks of a cluster's slot: go-redis takes the first argument for the key unless it is told.
func TransferLocks(ctx context.Context, client redis.UniversalClient, from, to, owner string) ([]int64, error) {
	command := redis.NewIntSliceCmd(ctx, "LOCK.MACQUIRE", 2, from, to, owner, "ID", owner)
	command.SetFirstKeyPos(2)
	err := client.Process(ctx, command)
	if errors.Is(err, redis.Nil) {
		return nil, ErrTimeout
	}
	return command.Val(), err
}
