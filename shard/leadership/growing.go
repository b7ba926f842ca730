package leadership

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// GrowthConfig configures a Growth. Every field must be set.
type GrowthConfig struct {
	Key     string // key of this node
	Catalog *catalog.Catalog
	// Local returns this node's replica of a group, or false if it has none that is open.
	Local   func(group uint32) (GrowthShard, bool)
	Space   *tiering.SnapshotSpace
	Logger  *slog.Logger
	Limited *slog.Logger // rate-limited
}

// GrowthShard is this node's replica of a shard.
type GrowthShard struct {
	Group   *replica.Replica
	Machine *tiering.Machine
	Cold    *cold.Group // nil for none
	Kind    codec.Kind
	Parent  uint32      // group of the shard of which a growth has made this one; 0 if there is none
	First   codec.Route // route of the shard when its group was created
}

// patienceDefault is the first value of Growth.Patience. Growth.Patience begins anew while a voter parts its data.
const patienceDefault = 15 * time.Second

// Growth lets the shards of one node grow. The goroutine that reconciles calls Step and Discard. Any goroutine
// may call the other methods.
type Growth struct {
	cfg          GrowthConfig
	membership   *Membership
	client       *CatalogClient
	parking      raftfsm.Parking
	preparations tiering.Preparations
	attempts     map[uint32]*attempt // by parent, for parents that this node leads; only Step uses it
	split        bool                // Step has split a shard since the last Discard
	// Patience is how long the leader of a parent waits until all voters that answer are ready. Four times as long
	// after it has seen an attempt, it abandons the attempt, and it makes the next attempt after the same time
	// again. It is atomic only because tests replace it.
	Patience atomic.Int64 // nanoseconds
}

// NewGrowth returns the Growth of a node. Call Connect before Step.
func NewGrowth(cfg GrowthConfig) *Growth {
	g := &Growth{cfg: cfg, attempts: map[uint32]*attempt{}}
	g.preparations.Space = cfg.Space
	g.Patience.Store(int64(patienceDefault))
	return g
}

// Connect sets how the node asks voters and changes the catalog. The Membership itself needs the Growth.
func (g *Growth) Connect(m *Membership, c *CatalogClient) {
	g.membership, g.client = m, c
}

// Close waits until no preparation reads. The replicas must be closed.
func (g *Growth) Close() { g.preparations.Close() }

// MachineConfig returns the configuration of the state machine of a replica. grew is raftfsm.Growth.Grew.
func (g *Growth) MachineConfig(kind codec.Kind, parent uint32, grew func()) raftfsm.Growth {
	return raftfsm.Growth{
		Parking: &g.parking, Unborn: parent != 0, Grew: grew,
		NewPart: func() raftfsm.Machine { return kinds.All.New(kind, raftfsm.Places{}) },
	}
}

// Room returns replica.Config.Room of a replica. Until its first snapshot, a part may use the space that the
// preparation of its parent keeps.
func (g *Growth) Room(group, parent uint32) func(bytes uint64) (release func(), err error) {
	if parent == 0 {
		return g.cfg.Space.Take
	}
	saved := func() bool {
		l, open := g.cfg.Local(group)
		return open && l.saved()
	}
	return func(bytes uint64) (func(), error) {
		if kept := g.preparations.Kept(parent); kept != nil && !saved() {
			return kept.Take(bytes, saved)
		}
		return g.cfg.Space.Take(bytes)
	}
}

func (l *GrowthShard) saved() bool { return l.Group.Snapshots().NewestIndex() > 0 }

// Closes ends the preparation of a replica that closes.
func (g *Growth) Closes(group uint32) { g.preparations.End(group) }

// ParkedBytes returns the memory of the parked parts.
func (g *Growth) ParkedBytes() uint64 { return g.parking.Bytes() }

// Prepare implements Grower.
func (g *Growth) Prepare(group, attempt uint32) error {
	l, open := g.cfg.Local(group)
	if !open {
		return errClosed
	}
	of := g.cfg.Catalog.View().SplitOf(group)
	if of.Attempt.Number != attempt {
		return fmt.Errorf("the catalog here shows attempt %d", of.Attempt.Number)
	}
	err := g.preparations.Prepare(attempt, tiering.Parent{
		Group: group, Machine: l.Machine, Cold: l.Cold, SnapshotBytes: l.Group.Snapshotter().Bytes(), Save: l.Group.Snapshotter().Take,
		By: partitionOf(&of, group),
	})
	if now, open := g.cfg.Local(group); !open || now.Machine != l.Machine { // Closes may have come before the preparation
		g.Closes(group)
		return errClosed
	}
	return err
}

var errClosed = errors.New("the replica is not open")

// Parked implements Grower.
func (g *Growth) Parked(child uint32) bool { return g.parking.Of(child) != nil }

// Check implements Grower.
func (g *Growth) Check(group uint32, parts int) error {
	l, open := g.cfg.Local(group)
	if !open {
		return errClosed
	}
	k := g.cfg.Catalog.View().SplitOf(group).Keyspace
	if !slices.Contains(k.Groups, group) { // the catalog here is behind
		parts = 0
	}
	return raftfsm.CheckSplit(l.Machine.Machine, PartitionOf(&k, group, parts))
}

// Discard removes the parked parts that nobody on this node will adopt (R8): the child has a snapshot, was dropped,
// or should have no replica here. A part stays while this node's catalog is too old to know the child.
func (g *Growth) Discard(view *catalog.View) {
	g.split = false
	for _, part := range g.parking.All() {
		l, open := g.cfg.Local(part.Group)
		if open && l.saved() || !open && !g.wanted(part.Group, view) {
			g.cfg.Logger.Info("discarding a part, which this node needs no more", "group", part.Group, "parent", part.Parent)
			g.parking.Discard(part)
		}
	}
}

// wanted reports whether this node should have a replica of a group, or its catalog is too old to know the group.
func (g *Growth) wanted(group uint32, view *catalog.View) bool {
	placement, placed := view.Groups[group]
	if !placed {
		return !view.Dropped(group)
	}
	_, numbered := placement.Number(g.cfg.Key)
	return numbered && view.MayHold(group, g.cfg.Key)
}

// Remedy returns what to do about a replica that is stuck at Adopt, since a time. unrepaired means that no other
// replica could repair it.
func (g *Growth) Remedy(l *GrowthShard, since time.Time, unrepaired bool) Remedy {
	a := Adopting{Stuck: l.Machine.Stuck(), Since: time.Since(since), Parked: g.Parked(l.Group.Group()), Unrepaired: unrepaired}
	if p, open := g.cfg.Local(l.Parent); open && p.Machine.Stuck() == nil {
		a.HasParent, a.HasSplit = true, p.Machine.Route().Modulus >= l.First.Modulus
		a.Replays = p.Machine.Barred() || p.Machine.GrewAt() > p.Group.Snapshots().NewestIndex()
	} else if !open {
		a.HasParent = g.wanted(l.Parent, g.cfg.Catalog.View()) // it is being opened
	}
	return a.Remedy()
}
