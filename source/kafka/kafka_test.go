package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
	"github.com/countd/countd/source/sink/sinktest"
)

// cluster is a fake of Kafka that keeps its data on disk. Its topics likes and likes.dead have one
// partition each.
type cluster struct {
	*kfake.Cluster
	addr    string
	dir     string // directory of the data
	options []kfake.Opt
	access  []kgo.Opt // options of a client
	client  *kgo.Client
}

// newCluster starts a cluster with extra options. access holds the options that its clients need.
func newCluster(t *testing.T, extra []kfake.Opt, access ...kgo.Opt) *cluster {
	t.Helper()
	addr := proctest.FreePorts(t, 1)[0]
	_, text, _ := net.SplitHostPort(addr)
	port, _ := strconv.Atoi(text)
	c := &cluster{addr: addr, dir: t.TempDir(), access: append(access, kgo.SeedBrokers(addr))}
	c.options = append(extra, kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(c.dir), kfake.SyncWrites(), kfake.SeedTopics(1, "likes", "likes.dead"))
	c.start(t)
	t.Cleanup(func() { c.Close() })
	var err error
	if c.client, err = kgo.NewClient(append(c.access, kgo.DefaultProduceTopic("likes"))...); err != nil {
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
		Open:   func(cfg *source.Config, access source.Access) (source.Broker, error) { return Open(cfg, access) },
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
			consumer, err := kgo.NewClient(append(c.access, kgo.ConsumeTopics("likes.dead"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
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
	t.Parallel()
	brokertest.Once(t, newCluster(t, nil).queue())
}

// TestTransactions: messages of aborted transactions count nothing, and the position passes the
// marker of the last transaction.
func TestTransactions(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
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
	must.Become(t, "the position is the end", func() bool {
		s := r.Status()
		return s.Position == s.End && s.End.Lo == 8
	})
	// Only control records follow the last counted message. A reader that begins at these records
	// also passes them.
	r.Stop()
	r = c.queue().Start(t, shards)
	c.queue().Write(t, brokertest.Like(1, 100))
	r.Counts(t, shards, 122)
}

func TestLostData(t *testing.T) {
	t.Parallel()
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
				continue // a running reader may have read the messages before they expire
			}
			t.Run(fmt.Sprintf("%s, running %v", name, running), func(t *testing.T) {
				cl := newCluster(t, nil)
				q := cl.queue()
				shards := sinktest.New(2, nil)
				q.Write(t, like, like)
				r := q.Start(t, shards)
				r.Counts(t, shards, 2)
				must.Become(t, "all shards have moved", func() bool { return shards.At(source.Position{Lo: 2}) })
				if !running {
					r.Stop()
				}
				write := func() {
					// Use a new client, because the client above may not know a topic that was
					// created again.
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

// TestFaults: errors of the broker delay messages, but no message counts twice.
func TestFaults(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
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
	t.Parallel()
	c := newCluster(t, nil)
	q := c.queue()
	q.Write(t, "a", "b", "c")
	if err := c.DeleteRecords("likes", 0, 1); err != nil {
		t.Fatal(err)
	}
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, q.Open)
	ctx := context.Background()
	first, end, err := b.Bounds(ctx, 0)
	if err != nil || first.Lo != 1 || end.Lo != 3 {
		t.Errorf("bounds %v %v %v", first, end, err)
	}
	if all, err := b.Partitions(ctx); err != nil || len(all) != 1 {
		t.Errorf("partitions %v, %v", all, err)
	}
	for _, from := range []uint64{0, 4} {
		if _, err := b.Read(ctx, 0, source.Position{Lo: from}, source.Mark{}); err == nil {
			t.Errorf("it reads from %d", from)
		}
	}
}

// TestCompacted: no source reads a compacted topic, which may lose messages before they are read.
func TestCompacted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	if err := c.DeleteTopic("likes"); err != nil {
		t.Fatal(err)
	}
	compact := "compact,delete"
	if err := c.CreateTopic("likes", 1, map[string]string{"cleanup.policy": compact}); err != nil {
		t.Fatal(err)
	}
	c.queue().Start(t, sinktest.New(1, nil)).Stalls(t, "cleanup.policy compact,delete")
}

// TestLargeLetters: letters are written even if together they exceed the topic's limit. A single
// letter above the limit stalls the source.
func TestLargeLetters(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	shards := sinktest.New(1, nil)
	start := func(topic, most string, messages ...string) *brokertest.Reader {
		if err := c.CreateTopic(topic, 1, map[string]string{"max.message.bytes": most}); err != nil {
			t.Fatal(err)
		}
		q := c.queue()
		q.Config += "dead-letters: " + topic + "\n"
		q.Write(t, messages...)
		return q.Start(t, shards)
	}
	var large []string
	for i := range uint64(5) {
		large = append(large, noise(i, 400_000))
	}
	r := start("large", "600000", large...)
	must.Become(t, "they are dead letters", func() bool { return shards.At(source.Position{Lo: 5}) })
	if got := c.PartitionInfo("large", 0).HighWatermark; got != 5 {
		t.Errorf("%d dead letters", got)
	}
	r.Stop()
	start("small", "1000", noise(9, 2000)).Stalls(t, "set on-error: skip")
}

// noise returns a text that does not compress.
func noise(seed uint64, length int) string {
	rng, text := rand.New(rand.NewPCG(seed, 1)), make([]byte, length)
	for i := range text {
		text[i] = byte(rng.Uint32())
	}
	return string(text)
}

// TestBrokerThatWasBehind: if a leader does not know the end of its log yet, the source stalls only
// until the leader knows it.
func TestBrokerThatWasBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	q := c.queue()
	shards, like := sinktest.New(2, nil), brokertest.Like(1, 1)
	q.Write(t, like, like, like)
	r := q.Start(t, shards)
	r.Counts(t, shards, 3)
	var knows atomic.Bool
	c.ControlKey(int16(kmsg.ListOffsets), func(request kmsg.Request) (kmsg.Response, error, bool) {
		if knows.Load() {
			return nil, nil, false
		}
		c.KeepControl()
		response := request.ResponseKind().(*kmsg.ListOffsetsResponse)
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic = "likes"
		p := kmsg.NewListOffsetsResponseTopicPartition()
		if p.Offset = 1; request.(*kmsg.ListOffsetsRequest).Topics[0].Partitions[0].Timestamp == -2 {
			p.Offset = 0
		}
		topic.Partitions = append(topic.Partitions, p)
		response.Topics = append(response.Topics, topic)
		return response, nil, true
	})
	r.Stalls(t, "position 3 is beyond the end of the queue, 1")
	knows.Store(true)
	q.Write(t, like)
	r.Counts(t, shards, 4)
}

// TestGrownSince: a log that ended below a position counts as truncated, even if it has grown
// before the reader asks for its end.
func TestGrownSince(t *testing.T) {
	t.Parallel()
	for now, want := range map[uint64]uint64{2: 2, 4: 4, 5: 4, 9: 4} {
		err := outside(source.Position{Lo: 5}, source.Position{}, source.Position{Lo: now})
		if stalled, is := errors.AsType[*source.StalledError](err); !is || !stalled.Truncated || stalled.End.Lo != want {
			t.Errorf("it ends at %d: %+v", now, err)
		}
	}
}

// TestOtherLeader: another leader has taken over, with other messages at the positions that were
// read. A reader that begins after that stalls, and the reason names the position to seek to.
func TestOtherLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	q := c.queue()
	shards, like := sinktest.New(2, nil), brokertest.Like(1, 1)
	q.Write(t, like, like, like)
	first := q.Start(t, shards)
	first.Counts(t, shards, 3)
	must.Become(t, "all shards have moved", func() bool { return shards.At(source.Position{Lo: 3}) })
	first.Stop()
	b := brokertest.BrokerOf(t, q.Config, source.Access{}, q.Open)
	r, err := b.Read(t.Context(), 0, source.Position{}, source.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	for read := 0; read < 3; {
		f, err := r.Next(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		read += len(f.Messages)
	}
	r.Close()
	// The fake does not lose messages. It only answers that the epoch ended at 2.
	asked := make(chan struct{}, 100)
	c.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked <- struct{}{}
		response := request.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		topic := kmsg.NewOffsetForLeaderEpochResponseTopic()
		topic.Topic = "likes"
		p := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
		p.LeaderEpoch, p.EndOffset = 0, 2
		topic.Partitions = append(topic.Partitions, p)
		response.Topics = append(response.Topics, topic)
		return response, nil, true
	})
	q.Write(t, "d")
	if r, err = b.Read(t.Context(), 0, source.Position{Lo: 3}, source.Mark{}); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		f, err := r.Next(t.Context(), 10)
		if _, is := errors.AsType[*source.StalledError](err); is {
			if !strings.Contains(err.Error(), "without the messages from 2 on") {
				t.Error(err)
			}
			break
		}
		if err != nil || len(f.Messages) > 0 {
			t.Fatalf("it reads %v, %v", f, err)
		}
	}
	if len(asked) == 0 {
		t.Error("the broker was not asked")
	}
	q.Start(t, shards).Stalls(t, "without the messages from 2 on took over: the queue lost messages and has others in their place; "+
		"seek to where it lost them, or below, to count what stands there; or seek to 3 to go on without it")
}

func TestBounded(t *testing.T) {
	t.Parallel()
	brokertest.Bounded(t, newCluster(t, nil).queue(), func(source.Reader) int { return 0 })
}

// TestOpenTransaction: a source does not count messages of an open transaction yet, but they are
// part of its lag. After a while the source's state is no longer running. The source continues once
// the transaction has ended.
func TestOpenTransaction(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	writer, err := kgo.NewClient(kgo.SeedBrokers(c.addr), kgo.DefaultProduceTopic("likes"), kgo.TransactionalID("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := writer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := writer.ProduceSync(t.Context(), &kgo.Record{Value: []byte(brokertest.Like(1, 5))}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	shards := sinktest.New(1, nil)
	r := c.queue().Start(t, shards)
	must.Become(t, "a message waits", func() bool {
		s := r.Status()
		lag, known := s.Lag()
		return known && lag == 1 && s.LagSeconds > 0
	})
	r.Stalls(t, "1 messages wait from position 0 on")
	if err := writer.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	r.Counts(t, shards, 5)
	must.Become(t, "it runs", func() bool {
		s := r.Status()
		lag, known := s.Lag()
		return known && lag == 0 && s.LagSeconds == 0 && s.State == source.StateRunning
	})
}

// TestTimesOfProducers: if a producer sends an implausible time, the source reports no lag in
// seconds.
func TestTimesOfProducers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	q := c.queue()
	q.Config += "on-error: stop\n"
	for _, at := range []time.Time{time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), time.UnixMilli(0)} {
		for _, value := range []string{brokertest.Like(1, 1), "poison"} {
			if err := c.client.ProduceSync(t.Context(), &kgo.Record{Value: []byte(value), Timestamp: at}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		shards := sinktest.New(1, nil)
		r := q.Start(t, shards)
		r.Stalls(t, "on-error is stop")
		if s := r.Status(); s.LagSeconds != -1 {
			t.Errorf("messages of %v: lag %v s", at, s.LagSeconds)
		}
		r.Stop()
		c.Close()
		c = newCluster(t, nil)
		q.Config = c.queue().Config + "on-error: stop\n"
	}
}

func TestRegrown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	copied := filepath.Join(t.TempDir(), "copy")
	move := func(to, from string) func(*testing.T) {
		return func(t *testing.T) {
			c.Close()
			brokertest.Copy(t, to, from)
			c.start(t)
		}
	}
	brokertest.Regrown(t, c.queue(), move(copied, c.dir), move(c.dir, copied))
}

// TestRemovedMark: if retention removed the last counted message, no message counts as lost.
func TestRemovedMark(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	q, shards, like := c.queue(), sinktest.New(2, nil), brokertest.Like(1, 1)
	for i := range int64(3) {
		r := q.Start(t, shards)
		q.Write(t, like, like)
		r.Counts(t, shards, 2*i+2)
		must.Become(t, "all shards have moved", func() bool { return shards.At(source.Position{Lo: uint64(2*i + 2)}) })
		r.Stop()
		if err := c.DeleteRecords("likes", 0, 2*i+2); err != nil {
			t.Fatal(err)
		}
	}
}
