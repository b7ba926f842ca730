// Command etcd is the opponent of countd in the cluster benchmark. It runs one member of an etcd
// cluster, or increments and reads counters in a cluster. etcd has no increment, so the command
// uses compare-and-swap. It is a module of its own so that countd does not depend on etcd.
//
//	etcd serve NAME DIR CLIENT_URL PEER_URL NAME=PEER_URL,…
//	etcd load ENDPOINT,… random|hot|read CALLERS DURATION
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// keys is the number of counters from which increments and reads choose at random.
const keys = 10_000

func main() {
	err := errors.New("usage: etcd serve … | etcd load …")
	switch {
	case len(os.Args) == 7 && os.Args[1] == "serve":
		err = serve(os.Args[2:])
	case len(os.Args) == 6 && os.Args[1] == "load":
		err = load(os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
}

func serve(args []string) error {
	c := embed.NewConfig()
	c.Name, c.Dir, c.LogLevel = args[0], args[1], "error"
	client, err := url.Parse(args[2])
	if err != nil {
		return err
	}
	peer, err := url.Parse(args[3])
	if err != nil {
		return err
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	c.InitialCluster = args[4]
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
		return nil
	case err := <-e.Err():
		return err
	}
}

func load(args []string) error {
	callers, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	duration, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(args[0], ","), DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	defer client.Close()
	do := map[string]func(context.Context, *clientv3.Client, string) error{
		"random": increment, "hot": increment, "read": read,
	}[args[1]]
	if do == nil {
		return fmt.Errorf("no load %q", args[1])
	}
	key := func() string { return "hot" }
	if args[1] != "hot" {
		key = func() string { return "post/" + strconv.Itoa(rand.IntN(keys)) }
	}
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	took := make([][]time.Duration, callers)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				if err := do(ctx, client, key()); err == nil {
					took[i] = append(took[i], time.Since(start))
				}
			}
		})
	}
	wg.Wait()
	all := slices.Concat(took...)
	if len(all) == 0 {
		return errors.New("nothing was answered")
	}
	slices.Sort(all)
	at := func(share float64) int64 { return all[int(share*float64(len(all)-1))].Microseconds() }
	fmt.Printf("%.0f %d %d\n", float64(len(all))/time.Since(began).Seconds(), at(0.5), at(0.99))
	return nil
}

// increment adds 1 to a counter: it reads the counter and puts the sum. If another client was
// faster, increment starts again.
func increment(ctx context.Context, c *clientv3.Client, key string) error {
	for {
		got, err := c.Get(ctx, key)
		if err != nil {
			return err
		}
		count, revision := 0, int64(0)
		if len(got.Kvs) > 0 {
			revision = got.Kvs[0].ModRevision
			if count, err = strconv.Atoi(string(got.Kvs[0].Value)); err != nil {
				return err
			}
		}
		done, err := c.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(clientv3.OpPut(key, strconv.Itoa(count+1))).
			Commit()
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// read is linearizable, which is etcd's default.
func read(ctx context.Context, c *clientv3.Client, key string) error {
	_, err := c.Get(ctx, key)
	return err
}
