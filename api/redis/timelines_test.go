package redis

import (
	"testing"

	"github.com/countd/countd/inbox"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard"
)

func TestPublishHasTheLimitsOfTheConfig(t *testing.T) {
	n := newFakeNode()
	c := dial(t, serve(t, n, func(cfg *Config) { cfg.Outboxes = inbox.OutboxKeep{Posts: 7} }))
	published := make(chan int, 1)
	n.failWrites(func(w *shard.Write) error {
		published <- w.Ops.(counters.OutboxOps)[0].Limits.Posts
		return nil
	})
	if c.do("COUNTD.OUTBOX.ADD 1 5"); <-published != 7 {
		t.Error("the outbox does not keep what the config says")
	}
}
