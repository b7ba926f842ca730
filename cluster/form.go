package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

// This comment explains how nodes without a cluster safely form or join one. A node stores three
// values durably before it announces them:
//
//   - the one set of nodes with which it has promised to form a cluster;
//   - the one cluster to which it has sent a JoinRequest;
//   - its cluster.
//
// Clocks matter only for the end of a promise. Each node uses its own monotonic clock. promiseFor
// is longer than the initiator's formTimeout plus a slow sync, and every promise begins after the
// initiator has read its own clock. So all promises still hold while the initiator decides.
const (
	promiseFor = 10 * time.Second
	// formTimeout bounds an attempt, from before its first request to the decision.
	formTimeout = 5 * time.Second
	// askTimeout bounds one request within an attempt. After askAgain, an unanswered request is
	// repeated.
	askTimeout = time.Second
	askAgain   = 200 * time.Millisecond
	// settleFor is the time for which the initiator must have seen the same nodes. So the initiator
	// notices a surplus node that starts at the same time.
	settleFor = time.Second
	// joinTimeout bounds a JoinRequest to one member. The member may have to wait for a leader of
	// the catalog.
	joinTimeout = 5 * time.Second
	// retryMin and retryMax bound the random wait after a failed attempt.
	retryMin, retryMax = 500 * time.Millisecond, 1500 * time.Millisecond
	// lookEvery is the interval between checks of the members while gossip reports no change.
	lookEvery = 250 * time.Millisecond
	// waitLogEvery is the interval at which the node logs why it waits.
	waitLogEvery = 10 * time.Second
	// rivalFor is the time for which another living node may have this node's name before this node
	// gives up. If this node was wiped, the other node is its former self, which gossip declares
	// dead in less time.
	rivalFor = 20 * time.Second
)

// Compile-time check: a promise lasts at least twice as long as an attempt.
const _ = uint64(promiseFor - 2*formTimeout)

// The errors of Former.Run that waiting cannot resolve.
var (
	// ErrNameTaken is returned when another living node has this node's name.
	ErrNameTaken = errors.New("another living node has this node's name")
	// ErrTwoClusters is returned when a node without a cluster sees members of two clusters.
	ErrTwoClusters = errors.New("nodes of two clusters are reached from here")
	// ErrRefused is returned when a cluster does not admit this node.
	ErrRefused = errors.New("the cluster refused this node")
)

// MemberView is the node's view of other nodes; *Gossip implements it.
type MemberView interface {
	Members() []Member
	Changed() <-chan struct{}
}

// Asker sends requests to other nodes. An error means that no answer arrived; the other node may
// still have handled the request.
type Asker interface {
	Form(ctx context.Context, addr string, p Proposal) (Agreement, error)
	Join(ctx context.Context, addr string, r JoinRequest) (JoinAnswer, error)
}

// FormStore durably keeps the state of a node without a cluster; each call returns when the
// state is on disk. *DataDir implements it.
type FormStore interface {
	SetPromised(set string) error
	SetJoining(clusterID string) error
	SetCluster(clusterID string, founder bool) error
}

// FormConfig configures NewFormer.
type FormConfig struct {
	Identity Identity // equal to the identity in Store, and without a cluster
	// Node is the catalog's entry for this node.
	Node catalog.Node
	// Expect is --bootstrap-expect; 0 if not given. If Expect is 1, or is 0 while Join is empty,
	// the node forms a cluster of itself alone at once.
	Expect int
	Join   bool // --join was given
	// ClusterName is the name that the cluster must have; "" for a cluster without a name.
	ClusterName string
	View        MemberView
	Asker       Asker
	Store       FormStore
	Logger      *slog.Logger
}

func (c *FormConfig) alone() bool { return c.Expect == 1 || c.Expect == 0 && !c.Join }

// Alone reports whether Run forms a cluster of this node alone.
func (c *FormConfig) Alone() bool { return c.alone() && c.Identity.Joining == "" }

// Former brings a node into a cluster: the node founds a cluster with other nodes, or joins a
// cluster that it sees.
type Former struct {
	cfg FormConfig

	mu struct {
		sync.Mutex // held while Store writes
		identity   Identity
		// promisedUntil is the time from which another set may replace identity.Promised.
		promisedUntil time.Time
		over          bool   // Run has ended or decided on a cluster, so the node agrees to no further proposal
		waiting       string // the reason why Run waits
	}
}

// NewFormer returns a Former. Before calling Run, begin to answer requests with HandleForm.
func NewFormer(cfg FormConfig) (*Former, error) {
	switch {
	case cfg.Identity.ClusterID != "":
		return nil, fmt.Errorf("cannot form or join a cluster: %w", ErrHasCluster)
	case cfg.Expect < 0 || cfg.Expect > ExpectMax:
		return nil, fmt.Errorf("cannot form a cluster of %d nodes, want 1 to %d", cfg.Expect, ExpectMax)
	}
	f := &Former{cfg: cfg}
	f.mu.identity = cfg.Identity
	f.mu.waiting = "the node has no cluster yet"
	if cfg.Identity.Promised != "" { // the promise counts from now, because the time before the restart is unknown
		f.mu.promisedUntil = time.Now().Add(promiseFor)
	}
	return f, nil
}

// Waiting returns why Run waits, as text for operators and /readyz.
func (f *Former) Waiting() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.waiting
}

// Run returns once the node has a cluster and Store has recorded it. The returned Identity has the
// cluster, and shows whether this node founded it. If only the operator can help, Run returns
// ErrNameTaken, ErrTwoClusters or ErrRefused. It also returns errors of Store and of ctx.
func (f *Former) Run(ctx context.Context) (Identity, error) {
	defer f.end()
	if f.cfg.Alone() {
		return f.found(time.Now(), "")
	}
	r := formRun{Former: f, logged: time.Now()}
	for {
		changed := f.cfg.View.Changed()
		id, err := r.look(ctx)
		if err != nil || id.ClusterID != "" {
			return id, err
		}
		select {
		case <-ctx.Done():
			return Identity{}, fmt.Errorf("cannot form or join a cluster: %w", ctx.Err())
		case <-changed:
		case <-time.After(lookEvery):
		}
	}
}

func (f *Former) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.over = true
}

func (f *Former) identity() Identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.identity
}

// formRun is the state of Run between two checks of the members.
type formRun struct {
	*Former
	logged  time.Time // when wait last logged the reason
	retryAt time.Time // no attempt before this time
	set     string    // set of nodes at the last check
	setAt   time.Time // when set was first seen
	rival   string    // key of another node with this node's name
	rivalAt time.Time // when rival was first seen
}

// look checks the members once and takes the step that they require. It returns an identity with a
// cluster once the node has one.
func (r *formRun) look(ctx context.Context) (Identity, error) {
	step := decide(r.identity(), r.cfg.Expect, r.cfg.View.Members())
	now := time.Now()
	if set := keySet(step.set); set != r.set {
		r.set, r.setAt = set, now
	}
	if step.rival.Key != r.rival {
		r.rival, r.rivalAt = step.rival.Key, now
	}
	r.wait(step.why)
	switch {
	case step.err != nil:
		return Identity{}, step.err
	case r.rival != "" && now.Sub(r.rivalAt) >= rivalFor:
		return Identity{}, fmt.Errorf("%s: %w", step.why, ErrNameTaken)
	case now.Before(r.retryAt):
		return Identity{}, nil
	case step.cluster != "":
		return r.join(ctx, step.cluster, step.members)
	case step.initiate && now.Sub(r.setAt) >= settleFor:
		return r.initiate(ctx, step.set)
	}
	return Identity{}, nil
}

// wait publishes the reason for waiting.
func (r *formRun) wait(why string) {
	r.mu.Lock()
	changed := r.mu.waiting != why
	r.mu.waiting = why
	r.mu.Unlock()
	switch {
	case time.Since(r.logged) >= waitLogEvery:
		r.logged = time.Now()
		r.cfg.Logger.Info("waiting for a cluster", "for", why)
	case changed:
		r.cfg.Logger.Debug("waiting for a cluster", "for", why)
	}
}

// retryLater delays the next attempt and logs why this one failed.
func (r *formRun) retryLater(why string) {
	r.retryAt = time.Now().Add(retryMin + rand.N(retryMax-retryMin))
	r.cfg.Logger.Info("no cluster yet, trying again", "why", why)
}
