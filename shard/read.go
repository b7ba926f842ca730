package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
)

const (
	// followMax bounds a read's wait until a replica has applied committed entries. While writes
	// arrive, the wait is much shorter than followMax. After the last write, a follower learns the
	// commit index only from the leader's next idle message, so asking the leader is faster than
	// waiting.
	followMax = 5 * time.Millisecond
	// If the confirmation is older than 1/renewShare of the allowed staleness, a bounded read
	// renews it in the background, so that a steady stream of reads never waits.
	renewShare = 2
)

// reader answers reads of all shards from this node's memory or disk, or from another node. It
// never changes a shard.
//
// Invariant: each Part of an answer comes from one replica that admit accepted for the read, on
// this node or another. If a second replica answers the same Part, its answer replaces the whole
// first answer. So all rows of one shard come from the same replica. A shard with more keys than
// Limits.Keys, which is possible for feeds, is read in runs of that many keys; each run comes from
// one replica.
type reader struct {
	*router
	streams *stream.Streams // streams to other nodes

	mu struct {
		sync.Mutex
		batchers map[string]*readBatchers // by node key; created at the first read
	}
}

// read reads by the present route, and once more from the beginning when a shard has split since.
func (rd *reader) read(ks *Keyspace, q raftfsm.Query, ids []uint64, opt *ReadOptions) error {
	for {
		shards, err := rd.shardsToRead(ks, opt)
		if err == nil {
			err = rd.readBy(shards, q, ids, opt)
		}
		split, is := errors.AsType[*splitError](err)
		switch {
		case !is:
			return err
		case time.Now().After(opt.Deadline):
			return fmt.Errorf("%w: %v", errs.ErrNoQuorum, err.Error())
		case !rd.registry.noteSplit(ks.FirstGroup, split.shard, split.modulus):
			time.Sleep(errs.RetryPauseMin) // until the catalog here has the parts
		}
	}
}

// readAny is tiering.Config.Read.
func (rd *reader) readAny(keyspace string, q raftfsm.Query, deadline time.Time) error {
	if ks := rd.registry.keyspaces.Load().byName[keyspace]; ks != nil {
		return rd.read(ks, q, nil, &ReadOptions{Consistency: Stale, Deadline: deadline})
	}
	return errs.ErrUnknownKeyspace
}

// splitError is a refusal of a read, because the shard has split, or because the attempt that made it was abandoned.
// Then shard and modulus are 0.
type splitError struct {
	error
	shard   int
	modulus uint32 // of the replica
}

// refusal returns a splitError if err shows that the shard of a part has split, and otherwise err.
func refusal(p *raftfsm.Part, err error) error {
	if modulus := rpc.ModulusOf(err); modulus > p.Route.Modulus {
		return &splitError{err, p.Shard, modulus}
	}
	return err
}

func hasSplit(err error) bool {
	_, is := errors.AsType[*splitError](err)
	return is
}

func (rd *reader) readBy(shards *keyspaceShards, q raftfsm.Query, ids []uint64, opt *ReadOptions) error {
	arrived, groups, route := time.Now(), shards.all, shards.route
	admit := func(g *shardReplica) (*localReplica, error) { return rd.admitted(g, opt, arrived) }
	if len(ids) == 1 {
		s, key := route.KeyOf(ids[0])
		r, err := rd.admitted(groups[s], opt, arrived)
		if err != nil {
			return err
		}
		if r != nil && raftfsm.One(q, r.fsm.Machine, route.Of(s), key) {
			return nil
		}
		admit = func(*shardReplica) (*localReplica, error) { return r, nil }
	}
	pg := raftfsm.NewRead(ids, route, opt.Deadline)
	defer pg.Release()
	q.Split(pg)
	for {
		pg.Err = rd.readShards(pg, q, groups, opt, admit)
		if again := q.Join(pg); !again || pg.Err != nil {
			return pg.Err
		}
		admit = func(g *shardReplica) (*localReplica, error) { return rd.admitted(g, opt, time.Now()) }
	}
}

// readShards reads a shard's part from memory if admit returns this node's replica. It reads all
// other parts concurrently, from disk or from other nodes. Every read uses readShards.
func (rd *reader) readShards(pg *raftfsm.Read, q raftfsm.Query, groups []*shardReplica, opt *ReadOptions, admit func(*shardReplica) (*localReplica, error)) error {
	var rest *waitingParts // nil while memory has all parts, to avoid the allocation
	for s, g := range groups {
		p := &pg.Parts[s]
		p.Failed, p.Skipped = false, false
		if len(p.Keys) == 0 {
			continue
		}
		r, err := admit(g)
		if r != nil && r.fsm.Answer(q, p, false, opt.Deadline) == nil {
			continue
		}
		if rest == nil {
			rest = &waitingParts{errs: make([]error, len(groups))}
		}
		waiting := rest
		if waiting.errs[s] = err; err == nil {
			waiting.Go(func() { waiting.errs[s] = rd.fetch(q, p, g, r, opt) }) // ends at the deadline
		}
	}
	if rest == nil {
		return nil
	}
	rest.Wait()
	err := failureOf(pg, rest.errs, q)
	if i := slices.IndexFunc(rest.errs, hasSplit); i >= 0 {
		err = rest.errs[i]
	}
	return err
}

// waitingParts are the parts of a read that this node's memory does not have.
type waitingParts struct {
	sync.WaitGroup
	errs []error // one for each shard, set by its goroutine
}

// fetch reads a part that this node's memory does not have. r is this node's replica, or nil if
// that replica may not answer. fetch reads r's disk. If r is nil or fails, fetch asks another node.
func (rd *reader) fetch(q raftfsm.Query, p *raftfsm.Part, g *shardReplica, r *localReplica, opt *ReadOptions) error {
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	keysMax := q.Limits(len(p.Keys)).Keys
	var words []int64
	for from := 0; from < len(p.Keys); from += keysMax {
		to := min(from+keysMax, len(p.Keys))
		some := raftfsm.Part{Shard: p.Shard, Route: p.Route, Keys: p.Keys[from:to]}
		if len(p.At) > 0 {
			some.At = p.At[from:to]
		}
		err := rd.ask(ctx, g, r, opt, func(r *localReplica) error {
			return refusal(&some, r.fsm.Answer(q, &some, true, opt.Deadline))
		}, func(ctx context.Context, node string) error {
			return refusal(&some, rd.readAt(ctx, node, q, &some, g, opt))
		})
		if err != nil {
			return err
		}
		if words == nil {
			words = some.Words
		} else {
			words = append(words, some.Words...)
		}
	}
	p.Words = words
	return nil
}

// ask tries to read a shard until one replica answers, or until ctx, which has the read's deadline,
// ends. All reads use this retry loop. The function local reads this node's replica, if that may
// answer; r is this replica if it was already admitted, or nil. The function remote reads another
// node, first the leader. An error of local is final, unless it is ErrMisrouted, or it is
// ErrNoQuorum and the cluster has other nodes. Of the errors of remote, only ErrBadToken,
// ErrUnknownKeyspace and a splitError are final.
func (rd *reader) ask(ctx context.Context, g *shardReplica, r *localReplica, opt *ReadOptions, local func(*localReplica) error, remote func(context.Context, string) error) error {
	last := errs.ErrNoLeader
	tryHere := func(r *localReplica) (done bool) {
		switch last = local(r); {
		case hasSplit(last):
			return true
		case errors.Is(last, errs.ErrMisrouted): // another replica may have the route
		case !errors.Is(last, errs.ErrNoQuorum):
			return true
		case rd.alone():
			last = g.failedAlone(last)
			return true
		}
		return false
	}
	if r != nil && tryHere(r) {
		return last
	}
	if errs.RetryUntil(ctx, func() bool {
		for _, node := range rd.readers(g) {
			last = g.orAbandoned(remote(ctx, node))
			if last == nil || errors.Is(last, errs.ErrBadToken) || errors.Is(last, errs.ErrUnknownKeyspace) || hasSplit(last) {
				return true
			}
		}
		// Check this again even in the first round, because this node may have just become the
		// leader.
		r, err := rd.admitted(g, opt, time.Now())
		if r != nil && tryHere(r) {
			return true
		}
		if err == nil {
			err = rd.nobodyHas(g, opt)
		}
		if err == nil && rd.catalog.View().Dropped(g.space) {
			err = errs.ErrUnknownKeyspace
		}
		if err == nil && rd.registry.shardOf(g.number) == nil {
			err = &splitError{error: errs.ErrMisrouted} // the attempt that made the shard was abandoned
		}
		if err != nil {
			last = err
		}
		return err != nil
	}) {
		return last
	}
	return fmt.Errorf("%w: shard %d of keyspace %s: %v", errs.ErrNoQuorum, g.shard, g.keyspace, last.Error())
}

// admitted returns this node's replica if that may answer a read that arrived at the given time. It
// returns nil if only other replicas may. Its only error is ErrBadToken, because no replica can
// answer a read with such a token.
func (rd *reader) admitted(g *shardReplica, opt *ReadOptions, arrived time.Time) (*localReplica, error) {
	r := g.replica.Load()
	if r == nil {
		return nil, nil
	}
	err := r.admit(g.number, opt, arrived)
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, errs.ErrBadToken):
		return nil, err
	}
	return nil, nil
}

// admit returns nil if this replica may answer a read, and otherwise an error. It may wait briefly
// until the replica may answer.
func (r *localReplica) admit(group uint32, opt *ReadOptions, arrived time.Time) error {
	if r.fsm.Stuck() != nil { // a stuck replica may have no state
		return errs.ErrBehind
	}
	if index := opt.Token.Index(group); !r.follow(index, opt.Deadline) {
		if r.neverWas(index, opt.Deadline) {
			return fmt.Errorf("%w: entry %d of group %d was never written", errs.ErrBadToken, index, group)
		}
		return errs.ErrBehind
	}
	if opt.Consistency == Stale {
		if r.fsm.Applied() == 0 {
			return errs.ErrBehind // an empty replica does not even have an old state of the shard
		}
		return nil
	}
	if opt.Consistency == Bounded {
		staleness := opt.MaxStaleness
		if staleness == 0 {
			staleness = MaxStalenessDefault
		}
		if c := r.fresh.Since(arrived.Add(-staleness)); c != nil {
			if c.Asked.Before(arrived.Add(-staleness / renewShare)) {
				r.fresh.Renew()
			}
			if r.follow(c.Index, opt.Deadline) {
				return nil
			}
			return errs.ErrBehind
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), opt.Deadline)
	defer cancel()
	index, err := r.fresh.Confirm(ctx)
	if err == nil && !r.follow(index, opt.Deadline) {
		err = errs.ErrBehind
	}
	return err
}

// follow waits, at most for followMax, until the replica has applied the log up to index. It
// reports whether the replica has.
func (r *localReplica) follow(index uint64, deadline time.Time) bool {
	if r.fsm.Applied() >= index {
		return true
	}
	if soon := time.Now().Add(followMax); soon.Before(deadline) {
		deadline = soon
	}
	return r.fsm.WaitApplied(index, deadline)
}
