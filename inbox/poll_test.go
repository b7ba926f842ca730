package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

// openNode opens a cluster of one node and waits until the node can serve.
func openNode(t testing.TB) *shard.Node {
	t.Helper()
	n, err := shard.Open(shard.Config{
		Dir: t.TempDir(), NodeKey: "n1.0", NodeName: "n1", Bootstrap: true, ClusterID: strings.Repeat("5", 32), Version: "1.2.3",
		ClusterAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7402",
		Shards: map[string]int{"posts": 3, "users": 3, "unread": 3, "feed": 3}, // so that polls span shards
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(must.Context(t)); err != nil {
			t.Error(err)
		}
	})
	if err := n.WaitReady(must.Context(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

func soon() time.Time { return time.Now().Add(must.BecomeMax) }

// follow gives each user a feed with random followees, and gives the authors posts.
func follow(t testing.TB, n *shard.Node, users, authors uint64, followees func() int) (total int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	write := func(keyspace string, w *shard.Write) {
		t.Helper()
		w.Deadline = soon()
		if err := n.Write(n.Keyspace(keyspace), w); err != nil {
			t.Fatal(err)
		}
	}
	var posts counters.Ops
	for id := range authors {
		posts = append(posts, engine.Op{ID: id, Kind: engine.OpSet, Cells: []engine.Cell{{Value: r.Int64N(300)}}})
		if len(posts) == 10_000 || id == authors-1 {
			write(kinds.KeyspaceUsers, &shard.Write{Ops: posts})
			posts = posts[:0]
		}
	}
	for first := uint64(0); first < users; first += 100 {
		var ops feed.Ops
		for user := first; user < min(first+100, users); user++ {
			op := feed.Op{Kind: feed.Reset, User: user}
			ids := map[uint64]bool{}
			for want := followees(); len(ids) < want; {
				ids[r.Uint64N(authors)] = true
			}
			for id := range ids {
				op.Followees = append(op.Followees, feed.Followee{ID: id, Posts: r.Int64N(300)})
			}
			slices.SortFunc(op.Followees, func(a, b feed.Followee) int { return int(a.ID) - int(b.ID) })
			total += len(op.Followees)
			ops = append(ops, op)
		}
		write(kinds.KeyspaceFeed, &shard.Write{Ops: ops})
	}
	return total
}

// A poll of many users returns the same for each user as a poll of that user alone, however many
// followees the users have together.
func TestPollsOfManyAreThoseOfEach(t *testing.T) {
	n := openNode(t)
	numbers := NewNumbers(n)
	sizes := []int{0, 1, 90, 3000, 2, FolloweesMax}
	next := 0
	follow(t, n, 60, 20_000, func() int { next++; return sizes[next%len(sizes)] })
	for _, user := range []uint64{3, 4, 5} {
		if _, err := numbers.Publish("news", &shard.Write{Deadline: soon()}); err != nil {
			t.Fatal(err)
		}
		if _, err := numbers.ReadNotices("news", user, nil, nil, &shard.Write{Deadline: soon()}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := numbers.Fire("shop", &shard.Write{Deadline: soon()}); err != nil {
		t.Fatal(err)
	}
	opt := &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: soon()}
	all := Poll{Channels: []string{"none", "news"}, Dots: []string{"shop"}}
	for user := range uint64(PollUsersMax) {
		all.Users = append(all.Users, user)
	}
	if err := numbers.Poll(&all, opt); err != nil {
		t.Fatal(err)
	}
	seen := int64(0)
	for i, user := range all.Users {
		one := Poll{Users: []uint64{user}, Channels: all.Channels, Dots: all.Dots}
		if err := numbers.Poll(&one, opt); err != nil {
			t.Fatal(err)
		}
		feed, err := numbers.Feed(user, opt)
		if err != nil || feed.Unread != one.Feeds[0][0] || all.Feeds[0][i] != one.Feeds[0][0] {
			t.Errorf("user %d has %d in %d posts unread, alone %d: %v", user, all.Feeds[0][i], feed.Unread, one.Feeds[0][0], err)
		}
		if !slices.Equal(all.Notices[2*i:2*i+2], one.Notices) || all.Shown[i] != one.Shown[0] || !slices.Equal(all.Counts[4*i:4*i+4], one.Counts) {
			t.Errorf("user %d: %v %v, alone %v %v", user, all.Notices[2*i:2*i+2], all.Shown[i], one.Notices, one.Shown)
		}
		seen += one.Feeds[0][0] + one.Notices[1]
	}
	if seen == 0 || all.Notices[2*3+1] != 2 || all.Notices[2*5+1] != 0 {
		t.Errorf("this shows too little: %v", all.Notices)
	}
}

// meeting is a node on which the reads of the three parts of a poll wait until all three have
// begun.
type meeting struct {
	*shard.Node
	holds   bool
	parts   sync.WaitGroup // of the three
	stopped chan struct{}
}

func (m *meeting) Holds(*shard.Keyspace) bool { return m.holds }

func (m *meeting) meet() error {
	m.parts.Done()
	met := make(chan struct{})
	go func() { m.parts.Wait(); close(met) }() // ends with the test, whose cleanup ends the wait
	select {
	case <-met:
		return nil
	case <-m.stopped:
		return errors.New("the parts do not meet")
	}
}

func (m *meeting) Read(ks *shard.Keyspace, query raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	q, ofRows := query.(*rows.Query)
	switch {
	case ofRows && q.Table == rows.Counts && ks.Kind == kinds.Unread:
		return m.meet()
	case !ofRows:
		if err := m.meet(); err != nil {
			return err
		}
	}
	return m.Node.Read(ks, query, ids, opt)
}

// If a poll waits for other nodes, its parts wait concurrently.
func TestPartsOfAPollWaitTogether(t *testing.T) {
	n := openNode(t)
	for name, c := range map[string]struct {
		holds       bool
		consistency shard.Consistency
	}{
		"shards elsewhere": {false, shard.Stale},
		"linearizable":     {true, shard.Linearizable},
	} {
		t.Run(name, func(t *testing.T) {
			m := &meeting{Node: n, holds: c.holds, stopped: make(chan struct{})}
			m.parts.Add(3)
			late := time.AfterFunc(must.BecomeMax, func() { close(m.stopped) })
			defer late.Stop()
			p := Poll{Users: []uint64{1}, Dots: []string{"x"}}
			if err := NewNumbers(m).Poll(&p, &shard.ReadOptions{Consistency: c.consistency, Deadline: soon()}); err != nil {
				t.Error(err)
			}
		})
	}
}

// BenchmarkPoll polls all kinds for users of 90 followees on average and 2,000 at the most, on a
// node that leads all shards. An op of the benchmark is the poll of one user.
func BenchmarkPoll(b *testing.B) {
	const users = 20_000
	n := openNode(b)
	numbers := NewNumbers(n)
	r := rand.New(rand.NewPCG(7, 7))
	total := follow(b, n, users, 1_000_000, func() int { return min(2000, int(r.ExpFloat64()*r.ExpFloat64()*90)) })
	for _, channel := range []string{"a", "b"} {
		if _, err := numbers.Publish(channel, &shard.Write{Deadline: soon()}); err != nil {
			b.Fatal(err)
		}
	}
	for _, together := range []int{1, PollUsersMax} {
		b.Run(fmt.Sprint(together), func(b *testing.B) {
			p := Poll{Users: make([]uint64, together), Channels: []string{"a", "b"}, Dots: []string{"x"}}
			b.ReportAllocs()
			for done := 0; done < b.N; done += together {
				for i := range p.Users {
					p.Users[i] = r.Uint64N(users)
				}
				if err := numbers.Poll(&p, &shard.ReadOptions{Deadline: soon()}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(total)/users, "followees")
		})
	}
}

// BenchmarkPollOf2000 polls the feeds of users with 2,000 followees each, one user at a time.
func BenchmarkPollOf2000(b *testing.B) {
	const users, followees = 1000, 2000
	n := openNode(b)
	numbers := NewNumbers(n)
	r := rand.New(rand.NewPCG(7, 7))
	follow(b, n, users, 1_000_000, func() int { return followees })
	p := Poll{Users: []uint64{0}}
	b.ReportAllocs()
	for b.Loop() {
		p.Users[0] = r.Uint64N(users)
		if err := numbers.Poll(&p, &shard.ReadOptions{Deadline: soon()}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*followees), "ns/followee")
}
