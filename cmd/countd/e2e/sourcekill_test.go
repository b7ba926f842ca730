package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	queueRows  = 40 // number of rows of each queue
	queueBatch = 20 // number of messages in one write
	// queueRest and queueRestShort are a writer's pauses between two writes, in the long form and
	// in the short form.
	queueRest      = 20 * time.Millisecond
	queueRestShort = 60 * time.Millisecond
)

// TestSourceKills counts queues of Redis, NATS, PostgreSQL and Kafka with three nodes, all at the
// same time and during writes. It kills brokers and nodes:
//
//  1. the counts are the sums of the messages in the queues;
//  2. another node continues to read a source when its reader is dead. Reading also continues after
//     a kill and restart of the broker;
//  3. no message is refused;
//  4. replicas agree;
//  5. all this also holds if the ids of posts are texts: a message has the digits of a number, and the
//     cluster gives another one.
func TestSourceKills(t *testing.T) {
	long(t)
	beside(t)
	t.Run("numbers", func(t *testing.T) { sourceKills(t) })
	t.Run("texts", func(t *testing.T) { sourceKills(t, "--ids", "posts=text") })
}

func sourceKills(t *testing.T, args ...string) {
	queues := startQueues(t)
	c := newCluster(t, proctest.Options{Args: args})
	nodes := c.Nodes()
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	stop := func() { cancel(); writers.Wait() }
	t.Cleanup(stop)
	for _, q := range queues {
		q.create(t, nodes[0])
		writers.Go(func() { q.keepWriting(ctx) })
	}
	show := func(n *proctest.Member, q *queue) (shown struct {
		State, Reason     string
		Applied, Rejected uint64
		Partitions        []struct{ Node string }
	}, err error) {
		code, err := n.Call(http.MethodGet, "/v1/sources/"+q.name, nil, &shown)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("status %d", code)
		}
		return shown, err
	}
	for round := range short(2, 12) {
		// In turn, kill the reader of one of the queues, or the node that leads most shards.
		victim, _ := c.LeaderOfMost()
		if round%2 == 0 {
			shown, err := show(nodes[0], queues[round/2%len(queues)])
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes {
				if len(shown.Partitions) > 0 && n.Name == shown.Partitions[0].Node { // there is no partition before a node reads the queue
					victim = n
				}
			}
		}
		alive := c.Others(victim)[0]
		victim.Kill()
		for i, q := range queues {
			if q.broker != queues[(i+1)%len(queues)].broker { // restart PostgreSQL once, although it has two queues
				q.broker.Restart(t)
			}
		}
		for _, q := range queues {
			before := uint64(0)
			succeeds(t, q.name+" goes on after the kills", func(context.Context) error {
				shown, err := show(alive, q)
				if err == nil && shown.State != "running" {
					err = fmt.Errorf("%+v", shown)
				}
				if err != nil {
					return err
				}
				for _, p := range shown.Partitions {
					if p.Node == "" || p.Node == victim.Name {
						return fmt.Errorf("%+v", shown)
					}
				}
				if before == 0 || shown.Applied <= before {
					before = max(1, shown.Applied)
					return fmt.Errorf("%+v", shown)
				}
				return nil
			})
		}
		victim.Start()
		c.AwaitReady(victim)
	}
	stop()
	for _, q := range queues {
		q.awaitCounted(t, nodes[1], nodes[2])
		if shown, err := show(nodes[0], q); err != nil || shown.Rejected > 0 || shown.State != "running" {
			t.Errorf("%s: %+v, %v", q.name, shown, err)
		}
	}
	c.AwaitAgreement(nodes...)
}

// keepWriting writes messages until ctx ends: about a thousand a second, or 300 in the short form.
func (q *queue) keepWriting(ctx context.Context) {
	for message := 0; ctx.Err() == nil; {
		likes := make([]like, queueBatch)
		for i := range likes {
			likes[i] = like{q.first + uint64(message%queueRows), int64(message%7) - 2}
			message++
		}
		const writeTimeout = 5 * time.Second
		once, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
		_ = q.write(once, likes) // ignore an error: the expected sums come from the broker's messages
		cancel()
		select {
		case <-ctx.Done():
		case <-time.After(short(queueRestShort, queueRest)):
		}
	}
}

// create creates the queue's source.
func (q *queue) create(t *testing.T, n *proctest.Member) {
	t.Helper()
	file := filepath.Join(t.TempDir(), q.name+".yaml")
	if err := os.WriteFile(file, []byte("name: "+q.name+"\nbatch: {messages: 200}\n"+q.config), 0o600); err != nil {
		t.Fatal(err)
	}
	n.MustCtl("source", "create", file)
}

// awaitCounted waits until the counts that one node reads are the sums of the messages, and another one shows that the
// source has no lag. Then the counts must not have changed. Nobody may write to the queue.
func (q *queue) awaitCounted(t *testing.T, reads, shows *proctest.Member) {
	t.Helper()
	var sums map[uint64]int64
	succeeds(t, "the messages of "+q.name+" are known", func(ctx context.Context) (err error) {
		sums, err = q.sums(ctx)
		return err
	})
	ids := make([]string, queueRows)
	for i := range ids {
		ids[i] = strconv.FormatUint(q.first+uint64(i), 10)
	}
	correct := func(context.Context) error {
		var wrong error
		for i, row := range reads.Rows("posts", ids) {
			if got, want := row.Counts["like"], sums[q.first+uint64(i)]; got != want {
				wrong = errors.Join(wrong, fmt.Errorf("row %s is %d, want %d", row.ID, got, want))
			}
		}
		return wrong
	}
	succeeds(t, q.name+" is counted", correct)
	shows.MustCtl("source", "show", q.name, "--wait")
	if err := correct(t.Context()); err != nil {
		t.Errorf("%s is counted, and then: %v", q.name, err)
	}
}
