// Sluice with go-redis: `go run . redis://localhost:6379`. Copy lock.go and the functions that you need from shop.go.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	url := "redis://localhost:6379"
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		log.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	if err := tour(context.Background(), client); err != nil {
		log.Fatal(err)
	}
}

func tour(ctx context.Context, client *redis.Client) error {
	if err := transfer(ctx, client); err != nil {
		return err
	}
	err := WithRenewed(ctx, client, "account:ann", 30*time.Second, 10*time.Second,
		func(ctx context.Context, hold *Hold) error {
			fmt.Println("held, renewed:", ctx.Err() == nil && hold.Fence > 0)
			return hold.Check(ctx)
		})
	if err != nil {
		return err
	}
	client.Do(ctx, "STOCK.SET", "sku:1", 10, "NX")
	order := unique()
	for i := 0; i < 2; i++ {
		left, err := Sell(ctx, client, "sku:1", 1, order, "ann")
		fmt.Println("left:", left, err)
	}
	client.Do(ctx, "BF.ADD", "names", "ann")
	for _, name := range []string{"ann", "bob"} {
		exists, err := MayExist(ctx, client, name)
		fmt.Println("may exist:", name, exists, err)
	}
	for i := 0; i < 2; i++ {
		value, err := Cached(ctx, client, "user:ann", func(context.Context, string) (any, error) { return "Ann", nil })
		fmt.Println("cached:", value, err)
	}
	for i := 0; i < 2; i++ {
		receipt, err := Once(ctx, client, "payment:1", "30 EUR", 30*time.Second,
			func(context.Context, int64) (string, error) { return "receipt", nil })
		fmt.Println("paid:", receipt, err)
	}
	wait, err := RetryAfter(ctx, client, "ann")
	fmt.Println("retry after:", wait, err)
	return err
}

// transfer works under a lock that the server renews.
func transfer(ctx context.Context, client *redis.Client) error {
	lock, err := Acquire(ctx, client, "account:ann", 30*time.Second, 10*time.Second)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := lock.Check(ctx); err != nil {
		return err
	}
	// db.ExecContext(ctx, "UPDATE accounts SET balance = ?, fence = ? WHERE id = ? AND fence <= ?", ..., lock.Fence)
	fmt.Println("held:", lock.Fence > 0)
	return lock.Release(ctx)
}
