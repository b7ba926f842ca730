package redis

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// written is the token of all writes to a keyspace that this node's clients have made. Reads use
// this token, so a client of this node sees all writes through this node, even those of other
// connections. Without the token, a follower's read may miss recent writes.
type written struct {
	token atomic.Pointer[shard.Token] // replaced, never changed
	mu    sync.Mutex                  // must be held to replace token
}

// add adds the token of a write. All requests of one log entry have the same token, so only the
// first of these requests replaces w.token.
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

// covers reports whether a read with sum is at least as fresh as a read with token.
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

// seeing calls the function read, which uses opt. If the cluster was restored to an earlier state,
// without some of the writes, read fails with ErrBadToken. Then seeing drops the tokens of all
// writes and calls read again.
func seeing(opt *shard.ReadOptions, read func() error, writes ...*written) error {
	err := read()
	if errors.Is(err, errs.ErrBadToken) {
		for _, w := range writes {
			w.token.Store(nil)
		}
		opt.Token = shard.Token{}
		err = read()
	}
	return err
}
