package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	largeFeeds     = 2500
	largeFollowees = 4900        // of each feed, with ids so sparse that each takes some 7 bytes
	largeBytes     = 64<<20 + 1  // least size of all feeds
	largeReads     = 250         // number of feeds that are compared at the end
	largeAuthor    = uint64(100) // the first author whom the users follow meanwhile
)

// TestLargeFeedsGrow multiplies the shards of a keyspace of many large feeds, most of them on disk, by 3, while users
// follow more authors and nodes are killed. Each feed has what was acknowledged, and all replicas are equal.
func TestLargeFeedsGrow(t *testing.T) {
	long(t)
	beside(t)
	c := proctest.NewCluster(t, bin, proctest.Options{Shards: oneShard, Args: []string{"--feed-idle=1s"}})
	node := func() *proctest.Node { return c.Nodes()[rand.IntN(len(c.Nodes()))].Node }
	ctx := must.Context(t)
	followees := func(user uint64) (all []uint64) {
		r := rand.New(rand.NewPCG(user, 5))
		for range largeFollowees {
			all = append(all, 1<<20+r.Uint64N(1<<62))
		}
		return all
	}
	write := func(key string, user uint64, path string, authors []uint64) {
		if err := once(ctx, node, http.MethodPost, fmt.Sprintf("/v1/feed/%d/%s", user, path), key, followeesBody(authors), nil); err != nil {
			t.Error(err)
		}
	}
	var loading sync.WaitGroup
	for i := range uint64(4) {
		loading.Go(func() {
			for user := i; user < largeFeeds; user += 4 {
				write(fmt.Sprint("load ", user), user, "reset", followees(user))
			}
		})
	}
	loading.Wait()
	eventually(t, "the feeds leave memory", func() bool {
		var bytes uint64
		for _, g := range c.Nodes()[0].Cluster().Groups {
			if g.Keyspace == "feed" {
				bytes += g.ColdBytes
			}
		}
		return bytes >= largeBytes
	})

	grown, more := make(chan struct{}), map[uint64][]uint64{}
	var writing, killing sync.WaitGroup
	writing.Go(func() { // ends once the keyspace has grown
		for round := uint64(0); round < 90*50; round++ { // a user may follow 5,000
			select {
			case <-grown:
				return
			case <-time.After(20 * time.Millisecond):
			}
			user := round * 7 % 50
			write(fmt.Sprint("follow ", round), user, "follow", []uint64{largeAuthor + round/50})
			more[user] = append(more[user], largeAuthor+round/50)
		}
	})
	killing.Go(func() { // ends once the keyspace has grown
		for i := 0; ; i++ {
			select {
			case <-grown:
				return
			case <-time.After(3 * time.Second):
			}
			n := c.Nodes()[i%3]
			n.Kill()
			n.StartReady()
		}
	})
	began := time.Now()
	grow(t, c, "feed", 1)
	t.Logf("feed has 3 shards after %v", time.Since(began))
	close(grown)
	writing.Wait()
	killing.Wait()
	c.AwaitReady(c.Nodes()...)
	c.AwaitAgreement(c.Nodes()...)
	for i := range uint64(largeReads) {
		user := i * (largeFeeds / largeReads)
		if i < 50 {
			user = i
		}
		want := append(more[user], followees(user)...)
		slices.Sort(want)
		want = slices.Compact(want)
		var got struct{ Followees []string }
		eventually(t, "the feed is read", func() bool {
			status, err := node().Call(http.MethodGet, fmt.Sprintf("/v1/feed/%d/followees?limit=5000&consistency=linearizable", user), nil, &got)
			return err == nil && status == http.StatusOK
		})
		for j, f := range got.Followees {
			if id, err := strconv.ParseUint(f, 10, 64); err != nil || j >= len(want) || id != want[j] {
				t.Fatalf("followee %d of user %d is %s", j, user, f)
			}
		}
		if len(got.Followees) != len(want) {
			t.Fatalf("user %d has %d followees, want %d", user, len(got.Followees), len(want))
		}
	}
}
