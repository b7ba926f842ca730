package inbox

import (
	"errors"
	"testing"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/tiering"
)

func TestLimitsOfAPublish(t *testing.T) {
	weibo := tiering.LayoutWeibo
	timed := func(posts int, keep uint64) counters.OutboxLimits {
		return counters.OutboxLimits{Posts: posts, Keep: keep, Shift: uint8(weibo.Shift), UnitMicros: 1_000_000, Epoch: weibo.Epoch, First: weibo.First()}
	}
	for _, test := range []struct {
		keep OutboxKeep
		want counters.OutboxLimits
	}{
		{OutboxKeep{}, counters.OutboxLimits{Posts: OutboxPostsDefault}},
		{OutboxKeep{Posts: 7, For: time.Hour}, counters.OutboxLimits{Posts: 7}},
		{OutboxKeep{Layout: weibo}, timed(OutboxPostsDefault, 30*24*60*60)},
		{OutboxKeep{Posts: 7, Layout: weibo, For: time.Hour}, timed(7, 60*60)},
		{OutboxKeep{Layout: weibo, For: time.Millisecond}, timed(OutboxPostsDefault, 1)},
	} {
		if got := test.keep.limits(); got != test.want {
			t.Errorf("%+v limits a publish to %+v, want %+v", test.keep, got, test.want)
		}
	}
}

// nodeOfPosts is a Node that refuses each write, and remembers its ops.
type nodeOfPosts struct {
	Node
	names string
	ops   raftfsm.Ops
}

func (n *nodeOfPosts) Keyspace(name string) *shard.Keyspace {
	return &shard.Keyspace{Name: name, Kind: kinds.Counters, Names: n.names}
}

func (n *nodeOfPosts) Write(_ *shard.Keyspace, w *shard.Write) error {
	n.ops = w.Ops
	return errs.ErrNoLeader
}

// Numbers of texts are no times, even where a layout takes such numbers for some: no post of a text is
// too old.
func TestPostsOfTextsHaveNoAge(t *testing.T) {
	keep := OutboxKeep{Posts: 7, Layout: tiering.IDLayout{Unit: time.Second}, For: time.Hour}
	for names, want := range map[string]counters.OutboxLimits{"": keep.limits(), "posts@ids": {Posts: 7}} {
		n := &nodeOfPosts{names: names}
		_, err := NewTimelines(n, keep).Publish(1, 2_000_000_000, &shard.Write{})
		if ops := n.ops.(counters.OutboxOps); !errors.Is(err, errs.ErrNoLeader) || ops[0].Limits != want {
			t.Errorf("names %q: limits %+v, want %+v; %v", names, ops[0].Limits, want, err)
		}
	}
}
