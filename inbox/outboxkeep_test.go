package inbox

import (
	"testing"
	"time"

	"github.com/countd/countd/raftfsm/counters"
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
