package kafka

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// cluster is a fake of Kafka that keeps its data on disk, with topics likes and likes.dead
// of one partition.
type cluster struct {
	*kfake.Cluster
	addr    string
	options []kfake.Opt
	client  *kgo.Client
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	addr := proctest.FreePorts(t, 1)[0]
	_, text, _ := net.SplitHostPort(addr)
	port, _ := strconv.Atoi(text)
	c := &cluster{addr: addr}
	c.options = []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(t.TempDir()), kfake.SyncWrites(), kfake.SeedTopics(1, "likes", "likes.dead")}
	c.start(t)
	t.Cleanup(func() { c.Close() })
	var err error
	if c.client, err = kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("likes")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	return c
}

func (c *cluster) start(t *testing.T) {
	t.Helper()
	var err error
	if c.Cluster, err = kfake.NewCluster(c.options...); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) queue() *brokertest.Queue {
	return &brokertest.Queue{
		Config: "name: likes\ntype: kafka\nbrokers: [" + c.addr + "]\ntopic: likes\nbatch: {messages: 100, linger: 1ms}\n",
		Open:   func(cfg *source.Config) (source.Broker, error) { return Open(cfg) },
		Restart: func(t *testing.T) {
			c.Close()
			c.start(t)
		},
		Write: func(t *testing.T, values ...string) {
			var records []*kgo.Record
			for _, v := range values {
				records = append(records, &kgo.Record{Value: []byte(v)})
			}
			if err := c.client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
				t.Fatal(err)
			}
		},
		Letters: func(t *testing.T) (all []string) {
			consumer, err := kgo.NewClient(kgo.SeedBrokers(c.addr), kgo.ConsumeTopics("likes.dead"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			if err != nil {
				t.Fatal(err)
			}
			defer consumer.Close()
			for end := c.PartitionInfo("likes.dead", 0).HighWatermark; int64(len(all)) < end; {
				for records := consumer.PollFetches(t.Context()).RecordIter(); !records.Done(); {
					r := records.Next()
					if len(r.Headers) < 4 || len(r.Key) == 0 {
						t.Errorf("letter %+v", r)
					}
					all = append(all, string(r.Value))
				}
			}
			return all
		},
	}
}

func TestOnce(t *testing.T) {
	brokertest.Once(t, newCluster(t).queue())
}

// TestTransactions: messages of transactions that were aborted count nothing, and the
// position passes the marker of the last.
func TestTransactions(t *testing.T) {
	c := newCluster(t)
	writer, err := kgo.NewClient(kgo.SeedBrokers(c.addr), kgo.DefaultProduceTopic("likes"), kgo.TransactionalID("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit, kgo.TryAbort} {
		if err := writer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := writer.ProduceSync(t.Context(), &kgo.Record{Value: []byte(brokertest.Like(1, int64(1+10*i)))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := writer.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	shards := sinktest.New(2, nil)
	r := c.queue().Start(t, shards)
	r.Counts(t, shards, 22)
	brokertest.Eventually(t, "the position is the end", func() bool {
		s := r.Status()
		return s.Position == s.End && s.End.Lo == 8
	})
}

func TestLostData(t *testing.T) {
	like := brokertest.Like(1, 1)
	for name, c := range map[string]struct {
		harm func(c *cluster, write func()) error
		want string
	}{
		"expired": {func(c *cluster, write func()) error {
			write()
			return c.DeleteRecords("likes", 0, 4)
		}, "outside of the topic"},
		"made anew": {func(c *cluster, write func()) error {
			err := c.DeleteTopic("likes")
			if err == nil {
				err = c.CreateTopic("likes", 1, nil)
			}
			write()
			return err
		}, "not the one that was read before"},
		"deleted": {func(c *cluster, _ func()) error { return c.DeleteTopic("likes") }, "topic likes is missing"},
	} {
		for _, running := range []bool{true, false} {
			if running && name == "expired" {
				continue // a reader that runs may have read them
			}
			t.Run(fmt.Sprintf("%s, running %v", name, running), func(t *testing.T) {
				cl := newCluster(t)
				q := cl.queue()
				shards := sinktest.New(2, nil)
				q.Write(t, like, like)
				r := q.Start(t, shards)
				r.Counts(t, shards, 2)
				brokertest.Eventually(t, "all shards have moved", func() bool { return shards.At(source.Position{Lo: 2}) })
				if !running {
					r.Stop()
				}
				write := func() {
					// The client above may not know a topic that was made anew.
					client, err := kgo.NewClient(kgo.SeedBrokers(cl.addr), kgo.DefaultProduceTopic("likes"))
					if err != nil {
						t.Fatal(err)
					}
					defer client.Close()
					for range 5 {
						if err := client.ProduceSync(t.Context(), &kgo.Record{Value: []byte(like)}).FirstErr(); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := c.harm(cl, write); err != nil {
					t.Fatal(err)
				}
				if !running {
					r = q.Start(t, shards)
				}
				r.Stalls(t, c.want)
				if got := shards.Sums()[1]; got != 2 {
					t.Errorf("row 1 is %d after messages were lost", got)
				}
			})
		}
	}
}

// TestFaults: errors of the broker delay messages and count none twice.
func TestFaults(t *testing.T) {
	c := newCluster(t)
	q := c.queue()
	shards := sinktest.New(2, nil)
	r := q.Start(t, shards)
	want := int64(0)
	for _, f := range []kfake.Fault{
		{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.NotLeaderForPartition, Count: 2},
		{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.UnknownServerError, Count: 2},
		{Keys: []kmsg.Key{kmsg.Metadata}, Err: kerr.LeaderNotAvailable, Count: 2},
	} {
		c.Fault(f)
		for range 50 {
			want++
			q.Write(t, brokertest.Like(1, 1))
		}
		r.Counts(t, shards, want)
	}
}

func TestBounds(t *testing.T) {
	c := newCluster(t)
	q := c.queue()
	q.Write(t, "a", "b", "c")
	if err := c.DeleteRecords("likes", 0, 1); err != nil {
		t.Fatal(err)
	}
	cfg, err := source.ParseConfig([]byte(q.Config))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx := context.Background()
	first, end, err := b.Bounds(ctx, 0)
	if err != nil || first.Lo != 1 || end.Lo != 3 {
		t.Errorf("bounds %v %v %v", first, end, err)
	}
	if all, err := b.Partitions(ctx); err != nil || len(all) != 1 {
		t.Errorf("partitions %v, %v", all, err)
	}
	for _, from := range []uint64{0, 4} {
		if _, err := b.Read(ctx, 0, source.Position{Lo: from}); err == nil {
			t.Errorf("it reads from %d", from)
		}
	}
}
