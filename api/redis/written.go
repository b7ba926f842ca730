package redis

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/shard"
)

// written is the token of all that this node's clients have written to a
// keyspace. Reads bring it, so that whoever talks to one node finds what was
// written there, also on another connection of its client's pool: followers are
// bounded behind their leader otherwise.
type written struct {
	token atomic.Pointer[shard.Token] // never changed, only replaced
	mu    sync.Mutex                  // of who replaces it
}

// add adds a write. All requests of a log entry bring the same token, and only the first of
// them replaces the sum.
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

// covers reports whether sum has all that token has.
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

// writtenTo returns what is known of a keyspace's writes.
func (s *Server) writtenTo(keyspace string) *written {
	w, _ := s.written.LoadOrStore(keyspace, &written{})
	return w.(*written)
}

// freshness says what a connection's reads must see: what was written through this
// node to some keyspaces. opt keeps its memory.
func (c *conn) freshness(opt *shard.ReadOptions, deadline time.Time, of ...*written) {
	*opt = shard.ReadOptions{Token: shard.Token{At: opt.Token.At[:0]}, Deadline: deadline}
	if c.stale {
		opt.Consistency = shard.Stale
		return
	}
	for _, w := range of { // no two keyspaces have a group in common
		if token := w.token.Load(); token != nil {
			opt.Token.Cluster = token.Cluster
			opt.Token.At = append(opt.Token.At, token.At...)
		}
	}
}

// seeing reads with opt. A cluster that was set back to a state from before some
// writes is read as it is.
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

// get reads rows.
func (t *table) get(c *conn, ids []uint64, rows []int64, deadline time.Time) error {
	c.freshness(&t.opt, deadline, t.written)
	return seeing(&t.opt, func() error { return c.server.node().Get(t.ks, ids, t.width(), &t.opt, rows) }, t.written)
}
