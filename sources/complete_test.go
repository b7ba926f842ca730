package sources

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// is checks the state, position, end, lag and applied messages of a source's only partition. lag is
// -1 if the lag must be unknown.
func (of *Source) is(t *testing.T, when, state string, position, end uint64, lag int64, applied uint64) {
	t.Helper()
	p, told := of.Partitions[0], int64(-1)
	if p.Lag != nil {
		told = int64(*p.Lag)
	}
	switch {
	case p.Position == nil || p.Position.Lo != position:
		t.Errorf("%s it is at %v, want %d: %+v", when, p.Position, position, of)
	case lag >= 0 && (p.End == nil || p.End.Lo != end || p.EndAgeMS == nil), lag < 0 && p.End != nil:
		t.Errorf("%s its end is %v, want %d: %+v", when, p.End, end, of)
	case told != lag:
		t.Errorf("%s its lag is %d, want %d: %+v", when, told, lag, of)
	case p.State != state || of.State != state || p.Applied != applied || of.Applied != applied:
		t.Errorf("%s it is %+v, want %d messages applied", when, of, applied)
	}
}

// TestUnreadPartition: a source that is paused, has just been resumed, or has stalled before it
// read anything
//
//  1. shows the position that its shards have;
//  2. shows the end of its queue and the lag, if the queue answers with the recorded identity;
//  3. shows how many messages were applied earlier.
func TestUnreadPartition(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	st.queue.add(0, like(1), like(1), like(1))
	need(st.put(""))(t)
	st.eventually("it is read", through(3))
	need(st.Pause(ctx, "likes"))(t).is(t, "paused", source.StatePaused, 3, 3, 0, 3)

	st.queue.set(func() { st.queue.withheld = 3 })
	st.queue.add(0, like(1), like(1))
	need(st.Resume(ctx, "likes"))(t).is(t, "resumed", source.StateRunning, 3, 5, 2, 3)
	need(st.Pause(ctx, "likes"))(t).is(t, "paused again", source.StatePaused, 3, 5, 2, 3)

	st.queue.setDown(errors.New("connection refused"))
	need(st.Get(ctx, "likes"))(t).is(t, "paused without a queue", source.StatePaused, 3, 0, -1, 3)
	need(st.Resume(ctx, "likes"))(t).is(t, "resumed without a queue", source.StateRunning, 3, 0, -1, 3)
	need(st.Pause(ctx, "likes"))(t)
	st.queue.set(func() { st.queue.down, st.queue.identity = nil, "another" })
	need(st.Get(ctx, "likes"))(t).is(t, "paused beside another queue", source.StatePaused, 3, 0, -1, 3)
	need(st.Resume(ctx, "likes"))(t)
	stalled := st.eventually("it stalls", func(of *Source) bool { return of.State == source.StateStalled })
	stalled.is(t, "stalled", source.StateStalled, 3, 0, -1, 3)

	st.queue.set(func() { st.queue.withheld, st.queue.identity = 0, "" })
	of := st.eventually("it goes on", applied(5))
	of.is(t, "at the end", source.StateRunning, 5, 5, 0, 5)
	if got := st.count(1); got != 5 {
		t.Errorf("counted %d", got)
	}
	if err := st.Delete(ctx, "likes"); err != nil {
		t.Fatal(err)
	}
	need(st.put(""))(t)
	st.eventually("another of the name is read", applied(5)).is(t, "made anew", source.StateRunning, 5, 5, 0, 5)
}

// TestPausedApart: if the shards of a paused source are at different positions, the reason of its
// partition says so, until the source is resumed and has caught up.
func TestPausedApart(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	st.queue.add(0, like(1), like(2))
	of := need(st.node.CreateSource(ctx, "likes", []byte(likes+`,"name":"likes","dead-letters":"LIKES.dead","password-file":"missing"}`), false))(t) // no node reads the source, because its password file is missing
	need(st.node.sink.Start(ctx, of.Number, 0, sink.Start{Identity: "queue"}))(t)
	need(st.node.sink.Positions(ctx, of.Number, 0))(t)
	need(st.node.sink.Apply(ctx, &sink.Batch{Source: of.Number, Next: sink.Position{Lo: 1}, Ops: []sink.Op{
		{Keyspace: "posts", ID: 1, Cells: []sink.Cell{{Column: "like", Value: 1}}},
	}}))(t)
	paused := need(st.Pause(ctx, "likes"))(t)
	paused.is(t, "paused", source.StatePaused, 0, 0, -1, 0)
	if want := "shards are at different positions, up to 1: "; !strings.HasPrefix(paused.Partitions[0].Reason, want) || !strings.HasPrefix(paused.Reason, want) {
		t.Errorf("the reasons are %q and %q", paused.Partitions[0].Reason, paused.Reason)
	}
	silent, cancel := context.WithCancel(ctx)
	cancel() // no shard answers within this context
	unknown := Partition{State: source.StatePaused}
	unknown.readPosition(silent, st.node, of)
	if want := "shards may be at different positions: cannot read the position in shard 0 of keyspace "; !strings.HasPrefix(unknown.Reason, want) || unknown.Position != nil {
		t.Errorf("while no shard answers it is %+v", unknown)
	}
	need(st.put(""))(t)
	need(st.Resume(ctx, "likes"))(t)
	st.eventually("it is read", through(2))
	paused = need(st.Pause(ctx, "likes"))(t)
	if paused.Reason != "" || paused.Partitions[0].Position.Lo != 2 || st.count(1) != 1 || st.count(2) != 1 {
		t.Errorf("once it has caught up it is %+v, and the rows are %d and %d", paused, st.count(1), st.count(2))
	}
}

// TestPausedSoonAfterAKill: after a reader was killed, a pause waits until the next reader has
// moved the shards to one position.
func TestPausedSoonAfterAKill(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	st.queue.add(0, like(1), like(2))
	st.queue.set(func() { st.queue.down = errors.New("down") })
	of := need(st.node.CreateSource(ctx, "likes", []byte(likes+`,"name":"likes"}`), false))(t)
	need(st.node.sink.Start(ctx, of.Number, 0, sink.Start{Identity: "queue"}))(t)
	need(st.node.sink.Positions(ctx, of.Number, 0))(t)
	need(st.node.sink.Apply(ctx, &sink.Batch{Source: of.Number, Next: sink.Position{Lo: 1}, Ops: []sink.Op{
		{Keyspace: "posts", ID: 1, Cells: []sink.Cell{{Column: "like", Value: 1}}},
	}}))(t)
	time.AfterFunc(time.Second, func() { st.queue.set(func() { st.queue.down = nil }) })
	paused := need(st.Pause(ctx, "likes"))(t)
	if paused.Reason != "" || paused.Partitions[0].Position.Lo == 0 || st.count(1) != 1 {
		t.Errorf("it is %+v, and row 1 is %d", paused, st.count(1))
	}
}

// A partition that moved to another node shows the sum of all nodes' counts.
func TestCountedByAllNodes(t *testing.T) {
	t.Parallel()
	st, ctx := start(t, 1), t.Context()
	need(st.put(`,"start":{"0":0}`))(t)
	need(st.Pause(ctx, "likes"))(t)
	n, of, err := st.find(ctx, "likes")
	if err != nil {
		t.Fatal(err)
	}
	reports := map[string][]report{
		"a": {{Number: of.Number, Counted: map[uint32]uint64{0: 5}}},
		"b": {{Number: of.Number, Ended: true, Counted: map[uint32]uint64{0: 7}}, {Number: of.Number + 1, Counted: map[uint32]uint64{0: 100}}},
	}
	if all := st.joinOne(ctx, n, of, reports, admin.Names(n.Catalog())); all.Applied != 12 {
		t.Errorf("it is %+v", all)
	}
	var c counts
	c.partition(1, 0)
	c.partition(2, 0)
	if c.keep([]catalog.Source{{Number: 2}}); len(c.load()) != 1 {
		t.Errorf("there are %v", c.load())
	}
}

// A source that no node reads, although a node should read it, does not report the state running
// for long.
func TestReadByNobody(t *testing.T) {
	t.Parallel()
	st := start(t, 1)
	st.unread = 300 * time.Millisecond
	st.queue.add(0, like(1))
	need(st.put(""))(t)
	st.eventually("it is read", through(1))
	number := need(st.node.Source("likes"))(t).Number
	other := "n2"
	for n := 2; weight(number, 0, other) < weight(number, 0, "n1"); n++ {
		other = fmt.Sprint("n", n)
	}
	node := st.node.Catalog().Nodes["n1"]
	node.Key, node.Name, node.ClusterAddr, node.HTTPAddr, node.GossipAddr = other, other, "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"
	if r, err := st.node.Change(t.Context(), &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: node}}); err != nil || r.Refused != "" {
		t.Fatal(r, err)
	}
	st.eventually("it is stalled", func(of *Source) bool {
		return of.State == source.StateStalled && of.Reason == "no node reads it at the moment"
	})
	drain := &catalog.SetNodeStateEntry{Key: other, State: catalog.NodeDraining}
	if r, err := st.node.Change(t.Context(), &catalog.Command{SetNodeState: drain}); err != nil || r.Refused != "" {
		t.Fatal(r, err)
	}
	st.eventually("it is read again", through(1))
}

// A running source also reports a partition that has never begun and that no node reads.
func TestNeverRead(t *testing.T) {
	t.Parallel()
	st := start(t, 1)
	end := st.nobodyReads()
	st.queue.add(0, like(1))
	if of := need(st.put(""))(t); len(of.Partitions) != 1 || of.Reason == "" || of.Lag != nil {
		t.Errorf("one of which no node knows anything is shown as %+v", of)
	}
	shown := func(state string) func(*Source) bool {
		return func(of *Source) bool {
			return len(of.Partitions) == 1 && of.Partitions[0].State == state && of.State == state && of.Reason == "no node reads it at the moment" && of.Lag == nil
		}
	}
	st.eventually("it is listed, and shown", shown(source.StateRunning))
	st.unread = -source.ListEvery // the source is stalled at once
	st.eventually("it is stalled", shown(source.StateStalled))
	st.unread = unreadMax
	end()
	st.eventually("it is read", through(1))
}
