package redis

import (
	"context"
	"errors"
	"time"

	"github.com/countd/countd/unread"
)

// lookEvery bounds how often a connection has the node look for names that it does
// not know. What a client asks for next waits that long at the most; a flood of bad
// names, one a command, is slowed down to it. Questions of connections at the same
// time are one to the catalog's leader.
const lookEvery = 10 * time.Millisecond

// nameError is of a keyspace or column that this node does not know. Another node
// may have made it just now, and its client been told so.
type nameError string

func (e nameError) Error() string { return "ERR " + string(e) }

// unknown is the error of a name. What none can be called is not looked for.
func unknown(name []byte, problem string) error {
	if unread.ValidName(name) { // keyspaces and columns are named as channels are
		return nameError(problem)
	}
	return argumentError(problem)
}

// misses reports whether an error is of a name that was not looked for yet. The
// command is then to be planned anew after lookUp.
func (b *batch) misses(err error) bool {
	_, unknown := errors.AsType[nameError](err)
	b.missed = b.missed || unknown && !b.looked
	return unknown && !b.looked
}

// lookUp has the node learn all keyspaces and columns that were made before now. It
// does so once for all commands that have arrived together: those behind came before
// it too. What was planned is executed and answered first, as it may take half of the
// time that there is.
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
	b.lookErr = c.server.cfg.Backend.CatchUp(ctx)
	b.missed, b.looked, c.lookedAt = false, true, time.Now()
	b.refresh()
}
