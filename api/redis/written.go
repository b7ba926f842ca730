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

// add adds a write.
func (w *written) add(token *shard.Token) {
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

// writtenTo returns what is known of a keyspace's writes.
func (s *Server) writtenTo(keyspace string) *written {
	w, _ := s.written.LoadOrStore(keyspace, &written{})
	return w.(*written)
}

// readOptions says what a connection's reads of a keyspace must see.
func (c *conn) readOptions(w *written, deadline time.Time) shard.ReadOptions {
	if c.stale {
		return shard.ReadOptions{Consistency: shard.Stale, Deadline: deadline}
	}
	opt := shard.ReadOptions{Deadline: deadline}
	if token := w.token.Load(); token != nil {
		opt.Token = *token
	}
	return opt
}

// get reads rows.
func (t *table) get(c *conn, ids []uint64, rows []int64, deadline time.Time) error {
	t.opt = c.readOptions(t.written, deadline)
	err := c.server.cfg.Backend.Get(t.ks, ids, t.width(), &t.opt, rows)
	if errors.Is(err, shard.ErrBadToken) {
		// The cluster was set back to a state from before those writes.
		t.written.token.Store(nil)
		t.opt.Token = shard.Token{}
		err = c.server.cfg.Backend.Get(t.ks, ids, t.width(), &t.opt, rows)
	}
	return err
}
