package redis

import (
	"context"
	"errors"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

// lookEvery bounds how often a connection makes the node look up unknown names. The next
// command of a client waits that long at most, and a flood of bad names, one a command, is
// slowed down to it. Concurrent lookups of several connections are one call to the catalog's
// leader.
const lookEvery = 10 * time.Millisecond

// nameError is an error about a keyspace or column that this node does not know. Another
// node may have just created it and acknowledged that.
type nameError string

func (e nameError) Error() string { return "ERR " + string(e) }

// unknown returns the error for an unknown name. Invalid names are not looked up.
func unknown(name []byte, problem string) error {
	if catalog.ValidName(name) { // keyspaces and columns are named as channels are
		return nameError(problem)
	}
	return argumentError(problem)
}

// misses reports whether an error is about a name that was not looked up yet. The command is
// planned again after lookUp.
func (b *batch) misses(err error) bool {
	_, unknown := errors.AsType[nameError](err)
	b.missed = b.missed || unknown && !b.looked
	return unknown && !b.looked
}

// lookUp brings the node's keyspaces and columns up to date, once for all commands that have
// arrived together. It first executes and answers the planned commands, because a lookup may
// take half of the time until the deadline.
func (b *batch) lookUp() {
	b.flush()
	c := b.conn
	if c.out.send() != nil {
		c.closing = true
	}
	if wait := lookEvery - time.Since(c.lookedAt); wait > 0 {
		time.Sleep(wait)
	}
	timeout := c.server.cfg.Timeout
	b.until = time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(context.Background(), b.until.Add(-timeout/2))
	defer cancel()
	b.lookErr = c.server.node().CatchUp(ctx)
	b.missed, b.looked, c.lookedAt = false, true, time.Now()
	b.refresh()
}
