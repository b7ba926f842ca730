package redis

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

// written is the token of all writes to a keyspace that this node's clients have made. Reads carry
// it. So a client that uses one node sees what was written through that node, even over other
// connections of its pool. Without the token, a follower's read may lag behind the leader, within a
// bound.
type written struct {
	token atomic.Pointer[shard.Token] // replaced, never changed
	mu    sync.Mutex                  // held to replace token
}

// add adds the token of a write. All requests of one log entry have the same token, and only the
// first of them replaces the sum.
func (w *written) add(token *shard.Token) {
	if sum := w.token.Load(); sum != nil && sum.Cluster == token.Cluster && covers(sum, token) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := &shard.Token{Cluster: token.Cluster}
	if before := w.token.Load(); before != nil {
		sum.At = make([]shard.GroupIndex, len(before.At), len(before.At)+len(token.At))
		copy(sum.At, before.At)
	}
	for _, at := range token.At {
		i := slices.IndexFunc(sum.At, func(seen shard.GroupIndex) bool { return seen.Group == at.Group })
		if i < 0 {
			sum.At = append(sum.At, at)
		} else {
			sum.At[i].Index = max(sum.At[i].Index, at.Index)
		}
	}
	w.token.Store(sum)
}

// covers reports whether sum contains everything in token.
func covers(sum, token *shard.Token) bool {
	for _, at := range token.At {
		if !slices.ContainsFunc(sum.At, func(seen shard.GroupIndex) bool {
			return seen.Group == at.Group && seen.Index >= at.Index
		}) {
			return false
		}
	}
	return true
}

// writtenTo returns the holder of the token of a keyspace's writes.
func (s *Server) writtenTo(keyspace string) *written {
	w, _ := s.written.LoadOrStore(keyspace, &written{})
	return w.(*written)
}

// freshness sets opt so that a connection's reads see what was written through this node to the
// given keyspaces. It reuses opt's memory.
func (c *conn) freshness(opt *shard.ReadOptions, deadline time.Time, of ...*written) {
	*opt = shard.ReadOptions{Token: shard.Token{At: opt.Token.At[:0]}, Deadline: deadline}
	if c.stale {
		opt.Consistency = shard.Stale
		return
	}
	for _, w := range of { // no two keyspaces share a group
		if token := w.token.Load(); token != nil {
			opt.Token.Cluster = token.Cluster
			opt.Token.At = append(opt.Token.At, token.At...)
		}
	}
}

// seeing calls read, which reads with opt. If the cluster was restored to a state before some
// writes, seeing forgets their tokens and reads again without them.
func seeing(opt *shard.ReadOptions, read func() error, of ...*written) error {
	err := read()
	if errors.Is(err, shard.ErrBadToken) {
		for _, w := range of {
			w.token.Store(nil)
		}
		opt.Token = shard.Token{}
		err = read()
	}
	return err
}

// readSets calls read with the options that freshness sets for the table's keyspace.
func (t *table) readSets(c *conn, read func(opt *shard.ReadOptions) error, deadline time.Time) error {
	var opt shard.ReadOptions
	c.freshness(&opt, deadline, t.written)
	return seeing(&opt, func() error { return read(&opt) }, t.written)
}

// get reads the rows of ids into dst.
func (t *table) get(c *conn, ids []uint64, dst []int64, deadline time.Time) error {
	c.freshness(&t.opt, deadline, t.written)
	t.query = rows.Query{Width: t.width(), Rows: dst}
	return seeing(&t.opt, func() error { return c.server.node().Read(t.ks, &t.query, ids, &t.opt) }, t.written)
}
