package leadership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/errs"
)

const (
	// growthTimeout bounds the calls of one step to other nodes. The step also waits for its own log: see
	// replica.Growth.
	growthTimeout = 2 * time.Second
	// askAgainAfter is after how long the leader of a parent asks again whether the parents may split.
	askAgainAfter = 3 * time.Second
	// abandonAfter is after how many times Growth.Patience an attempt is abandoned, and for how many times the next
	// attempt waits.
	abandonAfter = 4
)

// attempt is what the leader of a parent remembers of an attempt to split it.
type attempt struct {
	number    uint32                   // 0 if none is under way
	since     time.Time                // when this node, as the leader, first saw the attempt, or last saw steps rise
	steps     map[raft.ServerID]uint64 // the most steps of parting that each voter had
	next      time.Time                // earliest time of the next command to the catalog, after an attempt was abandoned or a command refused
	told      bool                     // all living nodes know of the attempt
	abandoned bool                     // the log of the parent has abandoned the attempt
}

// note lets the attempt last longer if a voter has parted more rows than ever before.
func (a *attempt) note(steps map[raft.ServerID]uint64) {
	for id, n := range steps {
		if n > a.steps[id] {
			a.steps[id], a.since = n, time.Now()
		}
	}
}

// step is the next step of a group's growth.
type step struct {
	*Growth
	group uint32
	local *GrowthShard
	view  *catalog.View
	of    catalog.SplitOf
	tell  bool // the catalog may be changed
}

// Step does for a replica of this node what the catalog shows. If this node leads the group, Step also proposes
// the next step of the growth. leads is the result of Membership.Reconcile, which the caller has called just
// before, in the same goroutine. If tell is false, Step proposes nothing to the catalog. It returns an error if
// the catalog could not be changed.
func (g *Growth) Step(l *GrowthShard, view *catalog.View, leads, tell bool) error {
	s := step{Growth: g, group: l.Group.Group(), local: l, view: view, tell: tell}
	s.of = view.SplitOf(s.group)
	over := max(s.of.Over, 1)
	l.Group.Growth.Begun(over - 1)
	g.preparations.Over(s.group, over, s.of.Parent == s.group)
	if !leads {
		delete(g.attempts, s.group)
		s.adopt()
		return nil
	}
	if s.of.Parent == 0 { // the keyspace does not grow
		delete(g.attempts, s.group)
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), growthTimeout)
	defer cancel()
	switch {
	case s.of.Parent != s.group:
		return s.begin(ctx)
	case !s.whole():
		delete(g.attempts, s.group) // the leaders of the children take the next steps
		return nil
	case g.split: // first the children of that shard adopt their parts
		return nil
	case s.of.Attempt.Number == 0:
		return s.commit(ctx)
	}
	return s.split(ctx)
}

// whole reports whether the shard of a parent has not split in the growth, by the replica's own log.
func (s *step) whole() bool {
	return s.local.Machine.Route().Modulus == uint32(len(s.of.Keyspace.Groups))
}

// adopt proposes Adopt, if this node leads an unborn child and has its part. The part exists, so Split is
// committed.
func (s *step) adopt() {
	g := &s.local.Group.Growth
	part := s.parking.Of(s.group)
	if !g.Unborn() || part == nil || s.local.Group.Stuck() != nil || !g.Elected() {
		return
	}
	err := g.Propose(part.Entry(s.local.Kind))
	s.note("adopt", err)
}

// begin reports to the catalog that a child has begun, once a majority of its voters has a snapshot.
func (s *step) begin(ctx context.Context) error {
	for _, pending := range s.of.Attempt.Pending {
		if pending == s.group && s.tell && s.membership.Saved(ctx, s.local.Group) {
			k, err := s.change(ctx, "begin", &catalog.Command{ChildBegun: &catalog.ChildBegunEntry{Group: s.group}})
			if err == nil && k.Name == s.of.Keyspace.Name && k.Growth == nil {
				s.cfg.Logger.Info("a keyspace has grown", "keyspace", k.Name, "shards", len(k.Groups))
			}
			return err
		}
	}
	return nil
}

// commit begins an attempt to split the shard of a parent, if the shard may split. The first attempt of a growth
// asks the voters of all parents.
func (s *step) commit(ctx context.Context) error {
	if last := s.attempts[s.group]; !s.tell || last != nil && time.Now().Before(last.next) {
		return nil
	}
	s.wait(askAgainAfter)
	parents := []uint32{s.group}
	if len(s.of.Keyspace.Growth.Attempts) == 0 {
		parents = s.of.Keyspace.Groups
	}
	k := &s.of.Keyspace
	if err := s.membership.MayAllSplit(ctx, s.view, parents, k.Growth.Shards/len(k.Groups)); err != nil {
		s.note("begin an attempt", err)
		return nil
	}
	s.wait(s.patience(1)) // if the catalog refuses; each command takes an entry of its log
	_, err := s.change(ctx, "begin an attempt", &catalog.Command{CommitSplit: &catalog.CommitSplitEntry{
		Group: s.group, Revision: s.view.Groups[s.group].Revision,
	}})
	return err
}

// wait makes the next attempt wait.
func (s *step) wait(d time.Duration) {
	s.attempts[s.group] = &attempt{next: time.Now().Add(d)}
}

func (g *Growth) patience(times time.Duration) time.Duration {
	return times * time.Duration(g.Patience.Load())
}

// split proposes Split once the conditions of R2 hold, or Abandon after a bounded wait. After Abandon in the log
// it makes the catalog abandon the attempt. A Split that is void means that an earlier leader has proposed Abandon.
func (s *step) split(ctx context.Context) error {
	a := s.attempts[s.group]
	if a == nil || a.number != s.of.Attempt.Number {
		a = &attempt{number: s.of.Attempt.Number, since: time.Now(), steps: map[raft.ServerID]uint64{}}
		s.attempts[s.group] = a
	}
	if !a.abandoned {
		term := s.local.Group.ReadyTerm() // read before the checks, see raftfsm.ErrLate
		err := s.maySplit(ctx, a)
		if err == nil {
			err = s.propose(s.splitEntry(term))
			s.Growth.split = err == nil
		} else if errors.Is(err, ErrUnready) && time.Since(a.since) >= s.patience(abandonAfter) {
			s.note("split in time", err)
			abandon := &raftfsm.AbandonEntry{From: s.from(), Attempt: a.number}
			if err = s.propose(abandon.Entry(s.local.Kind)); err == nil {
				err = raftfsm.ErrVoid
			}
		}
		s.note("split", err)
		a.abandoned = errors.Is(err, raftfsm.ErrVoid) && s.whole()
	}
	if !a.abandoned || !s.tell || time.Now().Before(a.next) {
		return nil
	}
	return s.abandon(ctx, a)
}

// abandon makes the catalog abandon an attempt that the log of the parent has abandoned.
func (s *step) abandon(ctx context.Context, a *attempt) error {
	a.next = time.Now().Add(s.patience(1)) // if the catalog does not answer; each command takes an entry of its log
	_, err := s.change(ctx, "abandon", &catalog.Command{AbandonSplit: &catalog.AbandonSplitEntry{Group: s.group, Attempt: a.number}})
	if err == nil {
		a.next = time.Now().Add(s.patience(abandonAfter)) // also if the catalog refuses
	}
	return err
}

func (s *step) propose(entry []byte) error { return s.local.Group.Growth.Propose(entry) }

// maySplit returns nil if all conditions of R2 hold. It first tells the other nodes of the attempt, so that few
// writers meet a catalog without the children.
func (s *step) maySplit(ctx context.Context, a *attempt) error {
	if !a.told {
		s.client.Tell(ctx, s.cfg.Catalog.Applied())
		a.told = true
	}
	children := s.of.Attempt.Children
	for _, child := range children {
		if l, open := s.cfg.Local(child); !open || l.Group.Leader() == "" {
			return fmt.Errorf("%w: group %d of a part has no leader, as this node knows", ErrUnready, child)
		}
	}
	patient := time.Since(a.since) < s.patience(1)
	steps, err := s.membership.MaySplit(ctx, s.local.Group, a.number, s.view.Groups[children[0]].Initial, patient)
	a.note(steps)
	return err
}

// from returns the route of a parent that has not split, by the catalog. The route of the replica would not do: an
// earlier Split of the attempt may be applied between the checks and the proposal, and the shard would split again.
func (s *step) from() codec.Route { return partitionOf(&s.of, s.group).From }

// partitionOf returns the parts of a parent, by the catalog.
func partitionOf(of *catalog.SplitOf, parent uint32) raftfsm.Partition {
	return PartitionOf(&of.Keyspace, parent, 1+len(of.Attempt.Children))
}

// PartitionOf returns the parts of a shard of a keyspace, whose number is given.
func PartitionOf(k *catalog.Keyspace, parent uint32, parts int) raftfsm.Partition {
	by := raftfsm.Partition{
		From:    codec.Route{Modulus: uint32(len(k.Groups)), Residue: uint32(slices.Index(k.Groups, parent))},
		Divisor: uint64(k.Divisor), Parts: uint32(parts),
	}
	if k.Sharding != "" {
		by.Divisor = 0
	}
	return by
}

func (s *step) splitEntry(term uint64) []byte {
	by := partitionOf(&s.of, s.group)
	e := raftfsm.SplitEntry{
		From: by.From, Attempt: s.of.Attempt.Number, Term: term, Group: s.group, Divisor: by.Divisor, Children: s.of.Attempt.Children,
	}
	return e.Entry(s.local.Kind)
}

// change proposes a command to the catalog, and returns the keyspace after it. A refusal is no error: the next step
// follows from a newer catalog.
func (s *step) change(ctx context.Context, what string, command *catalog.Command) (k catalog.Keyspace, err error) {
	result, _, err := s.client.Change(ctx, command)
	switch {
	case err != nil:
		s.note(what, err)
	case result.Refused != "":
		s.note(what, fmt.Errorf("%w: %s", errs.ErrRefused, result.Refused))
	default:
		s.note(what, nil)
		k = result.Keyspace
	}
	return k, err
}

// note logs a step, or why it is not possible now.
func (s *step) note(what string, err error) {
	if err != nil {
		s.cfg.Limited.Info("a shard cannot "+what+" now", "group", s.group, "attempt", s.of.Attempt.Number, "err", err)
		return
	}
	s.cfg.Logger.Info("a shard grows: "+what, "group", s.group, "keyspace", s.of.Keyspace.Name, "attempt", s.of.Attempt.Number)
}
