// The runner of examples/clients/go: scripts/prepare-go compiles it with lock.go and shop.go. The last argument is the protocol, 2 or 3.
// Operations that these files lack are single commands.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The client reads for this long; longer than the BLOCK of Cached and Once.
const timeout = 2500 * time.Millisecond

// Refused is a reply that is no success.
type Refused string

func (refusal Refused) Error() string { return string(refusal) }

// Words are the arguments of an operation. Times are in milliseconds.
type Words struct {
	ID          int
	Do          string
	Topology    string
	Host        string
	Port        int
	Master      string
	Key         string
	Keys        []string
	Name        string
	Wait        int64
	Lease       int64
	Linger      *bool
	Limit       int64
	Permits     int64
	Qty         int
	Order       string
	User        string
	Items       json.RawMessage
	Ms          int64
	Delta       int64
	Result      string
	Value       string
	Takes       int64
	Fingerprint string
	Message     string
	Burst       int64
	Count       int64
	Period      int64
	Item        string
}

func ms(number int64) time.Duration { return time.Duration(number) * time.Millisecond }

func (words *Words) lease(otherwise int64) time.Duration {
	if words.Lease == 0 {
		return ms(otherwise)
	}
	return ms(words.Lease)
}

// held is a lock, several locks or permits.
type held struct {
	check   func() error
	isLost  func() bool
	release func() error
}

// Client is what the requests use.
type Client struct {
	client   redis.UniversalClient
	once     redis.UniversalClient // never repeats: a second RATE.GCRA would count, and a second release would be a loss
	protocol int
	lock     sync.Mutex
	holds    map[string]held
}

var background = context.Background()

func (client *Client) connect(words *Words) {
	if client.client != nil {
		client.client.Close()
		client.once.Close()
	}
	client.holds = map[string]held{}
	client.client = open(words, client.protocol, 0)
	client.once = open(words, client.protocol, -1)
}

func open(words *Words, protocol, retries int) redis.UniversalClient {
	address := fmt.Sprintf("%s:%d", words.Host, words.Port)
	switch words.Topology {
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{address}, Protocol: protocol, ReadTimeout: timeout, MaxRetries: retries})
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			SentinelAddrs: []string{address}, MasterName: words.Master, Protocol: protocol, ReadTimeout: timeout, MaxRetries: retries})
	}
	return redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, ReadTimeout: timeout, MaxRetries: retries})
}

// Locks

func (client *Client) keep(words *Words, hold held) {
	client.lock.Lock()
	defer client.lock.Unlock()
	client.holds[words.Name] = hold
}

func (client *Client) hold(words *Words) held {
	client.lock.Lock()
	defer client.lock.Unlock()
	return client.holds[words.Name]
}

func (client *Client) acquire(words *Words) (any, error) {
	server := client.client.(*redis.Client)
	if words.Linger == nil || *words.Linger {
		return client.acquireRenewed(server, words)
	}
	lock, err := Acquire(background, server, words.Key, words.lease(10_000), ms(words.Wait))
	if err != nil {
		return nil, err
	}
	client.keep(words, held{
		check:  func() error { return lock.Check(background) },
		isLost: func() bool { return lock.Check(background) != nil },
		release: func() error {
			defer lock.Close()
			return lock.Release(background)
		},
	})
	return lock.Fence, nil
}

// acquireRenewed begins work that lasts until the lock is released.
func (client *Client) acquireRenewed(server *redis.Client, words *Words) (any, error) {
	fence, end, result := make(chan int64), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- WithRenewed(background, server, words.Key, words.lease(10_000), ms(words.Wait),
			func(ctx context.Context, hold *Hold) error {
				client.keep(words, held{
					check:  func() error { return hold.Check(background) },
					isLost: func() bool { return ctx.Err() != nil },
					release: func() error {
						close(end)
						return <-result
					},
				})
				fence <- hold.Fence
				<-end
				return nil
			})
	}()
	select {
	case number := <-fence:
		return number, nil
	case err := <-result:
		return nil, err
	}
}

func (client *Client) acquireMany(words *Words) (any, error) {
	owner := unique()
	fences, err := TransferLocks(background, client.client, words.Keys[0], words.Keys[1], owner)
	client.keep(words, held{release: func() error {
		return client.once.Do(background, "LOCK.MRELEASE", 2, words.Keys[0], words.Keys[1], owner).Err()
	}})
	return fences, err
}

func (client *Client) acquirePermits(words *Words) (any, error) {
	owner := unique()
	fence, err := client.number("SEM.ACQUIRE", words.Key, owner, "LIMIT", words.Limit, "PERMITS", words.Permits, "ID", owner)
	client.keep(words, held{release: func() error {
		return client.once.Do(background, "SEM.RELEASE", words.Key, owner, "ALL").Err()
	}})
	return fence, err
}

// Commands

func (client *Client) number(words ...any) (int64, error) {
	return client.client.Do(background, words...).Int64()
}

// is returns whether the reply is 1 or true.
func (client *Client) is(words ...any) (any, error) {
	return client.client.Do(background, words...).Bool()
}

// changed returns the quantity that a command of a stock replied.
func changed(quantity int64, err error) (any, error) {
	refusals := map[int64]Refused{-1: "SOLD_OUT", -2: "OVER_USER_LIMIT", -3: "CLOSED", -4: "UNKNOWN"}
	switch refusal, isRefused := refusals[quantity]; {
	case errors.Is(err, redis.Nil):
		return nil, Refused("UNKNOWN")
	case err == nil && isRefused:
		return nil, refusal
	}
	return quantity, err
}

// pairs returns the words of an object in their order.
func pairs(object json.RawMessage) (words []any) {
	decoder := json.NewDecoder(strings.NewReader(string(object)))
	for {
		token, err := decoder.Token()
		if err != nil {
			return words
		}
		if _, isBrace := token.(json.Delim); !isBrace {
			words = append(words, token)
		}
	}
}

func (client *Client) deductMany(words *Words) (any, error) {
	items := pairs(words.Items)
	arguments := append([]any{"STOCK.MDEDUCT", len(items) / 2}, items...)
	command := redis.NewIntSliceCmd(background, append(arguments, "ORDER", words.Order)...)
	command.SetFirstKeyPos(2)
	err := client.client.Process(background, command)
	return command.Val(), err
}

var operations = map[string]func(client *Client, words *Words) (any, error){
	"lock.acquire":      (*Client).acquire,
	"lock.acquire_many": (*Client).acquireMany,
	"semaphore.acquire": (*Client).acquirePermits,
	"lock.release": func(client *Client, words *Words) (any, error) {
		return true, client.hold(words).release()
	},
	"lock.check": func(client *Client, words *Words) (any, error) {
		return true, client.hold(words).check()
	},
	"lock.lost": func(client *Client, words *Words) (any, error) {
		return client.hold(words).isLost(), nil
	},
	"stock.deduct": func(client *Client, words *Words) (any, error) {
		return changed(Sell(background, client.client, words.Key, words.Qty, words.Order, words.User))
	},
	"stock.deduct_many": (*Client).deductMany,
	"stock.reserve": func(client *Client, words *Words) (any, error) {
		return changed(client.number("STOCK.RESERVE", words.Key, words.Qty, "ORDER", words.Order, "PX", words.Ms))
	},
	"stock.confirm": func(client *Client, words *Words) (any, error) {
		return changed(client.number("STOCK.CONFIRM", words.Key, words.Order))
	},
	"stock.cancel": func(client *Client, words *Words) (any, error) {
		return changed(client.number("STOCK.CANCEL", words.Key, words.Order))
	},
	"stock.add": func(client *Client, words *Words) (any, error) {
		return changed(client.number("STOCK.ADD", words.Key, words.Delta, "ORDER", words.Order))
	},
	"once.run": func(client *Client, words *Words) (any, error) {
		runs := 0
		result, err := Once(background, client.client, words.Key, words.Fingerprint, words.lease(30_000),
			func(context.Context, int64) (string, error) {
				runs++
				time.Sleep(ms(words.Takes))
				return words.Result, nil
			})
		return map[string]any{"result": result, "runs": runs}, err
	},
	"cache.get": func(client *Client, words *Words) (any, error) {
		runs := 0
		value, err := Cached(background, client.client, words.Key, func(context.Context, string) (any, error) {
			runs++
			time.Sleep(ms(words.Takes))
			return words.Value, nil
		})
		return map[string]any{"value": value, "runs": runs}, err
	},
	"cache.delete": func(client *Client, words *Words) (any, error) {
		return nil, client.client.Do(background, "CACHE.DEL", words.Key).Err()
	},
	"delay.add": func(client *Client, words *Words) (any, error) {
		return client.is("DELAY.ADD", words.Key, words.Message, "PX", words.Ms, "VALUES", "text", words.Message)
	},
	"delay.cancel": func(client *Client, words *Words) (any, error) {
		return client.is("DELAY.CANCEL", words.Key, words.Message)
	},
	"limit.gcra": func(client *Client, words *Words) (any, error) {
		reply, err := client.once.Do(background, "RATE.GCRA", words.Key, words.Burst, words.Count, words.Period).Int64Slice()
		return err == nil && reply[0] == 0, err
	},
	"limit.first": func(client *Client, words *Words) (any, error) {
		return client.once.Do(background, "RATE.ONCE", words.Key, "PX", words.Ms).Bool()
	},
	"bloom.add": func(client *Client, words *Words) (any, error) {
		return client.is("BF.ADD", words.Key, words.Item)
	},
	"bloom.exists": func(client *Client, words *Words) (any, error) {
		return client.is("BF.EXISTS", words.Key, words.Item)
	},
}

func failure(err error) map[string]any {
	var refused Refused
	var reply redis.Error
	switch {
	case errors.As(err, &refused):
		return map[string]any{"refused": string(refused)}
	case errors.Is(err, ErrTimeout):
		return map[string]any{"refused": "timeout"}
	case errors.Is(err, ErrLost):
		return map[string]any{"refused": "lost"}
	case !errors.As(err, &reply):
		return map[string]any{"error": "connection", "text": err.Error()}
	}
	for start, name := range map[string]string{"CONFLICT": "Conflict", "WRONGTYPE": "WrongType", "ERR no such delay queue": "NoSuchQueue"} {
		if strings.HasPrefix(err.Error(), start) {
			return map[string]any{"error": name}
		}
	}
	return map[string]any{"error": "another", "text": err.Error()}
}

var writes sync.Mutex

func write(line map[string]any) {
	writes.Lock()
	defer writes.Unlock()
	json.NewEncoder(os.Stdout).Encode(line)
}

func answer(client *Client, words *Words) {
	value, err := operations[words.Do](client, words)
	line := map[string]any{"ok": value}
	if err != nil {
		line = failure(err)
	}
	line["id"] = words.ID
	write(line)
}

func main() {
	names := []string{"bound", "linger", "local-loss"}
	for name := range operations {
		names = append(names, name)
	}
	sort.Strings(names)
	write(map[string]any{"client": "go-redis " + redis.Version(), "runtime": "Go " + runtime.Version()[2:], "repeats": false,
		"operations": names, "without": map[string][]string{"cluster": {"lock.acquire"}}})
	client := &Client{protocol: 2}
	if os.Args[len(os.Args)-1] == "3" {
		client.protocol = 3
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := &Words{}
		if err := json.Unmarshal(lines.Bytes(), words); err != nil {
			panic(err)
		}
		if words.Do == "connect" {
			client.connect(words)
			write(map[string]any{"id": words.ID, "ok": nil})
		} else {
			go answer(client, words)
		}
	}
}
