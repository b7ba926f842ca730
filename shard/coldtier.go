package shard

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
)

const (
	// coldQuietMax is for how long nobody may have written to a segment that is
	// frozen, unless ColdAfter is less: rows that are written to are not cold,
	// however old.
	coldQuietMax = time.Minute
	coldQuietMin = 200 * time.Millisecond
	// coldSnapshotShare is how many of a shard's rows, as a share, leave memory before
	// a snapshot is taken for that. It writes those that stay: so often that is
	// little.
	coldSnapshotShare = 8
	// coldAhead is how far in the future an id's time may lie. What lies further
	// carries no time of this layout, and is old.
	coldAhead = 24 * time.Hour
)

// ColdAfterDefault is when a row is cold by the time in its id.
const ColdAfterDefault = 180 * 24 * time.Hour

// ColdCacheBytesDefault is for cold rows that were read: some 5 million of them.
const ColdCacheBytesDefault = cold.CacheBytesDefault

// IDLayout says how ids of a keyspace carry time: the id shifted right by Shift is a
// number of units since the epoch. The zero layout has none.
type IDLayout struct {
	Shift uint
	Unit  time.Duration // 0 for ids without time
	Epoch int64         // units from 1970 on to the number 0
}

// The layouts with a name.
var (
	LayoutWeibo   = IDLayout{Shift: 22, Unit: time.Second, Epoch: 515483463}
	LayoutTwitter = IDLayout{Shift: 22, Unit: time.Millisecond, Epoch: 1288834974657}
)

// ParseIDLayout reads weibo, twitter, none or SHIFT:EPOCH:UNIT, with an epoch in
// units and a unit such as 1s or 1ms.
func ParseIDLayout(text string) (IDLayout, error) {
	switch text {
	case "weibo":
		return LayoutWeibo, nil
	case "twitter":
		return LayoutTwitter, nil
	case "none":
		return IDLayout{}, nil
	}
	var l IDLayout
	fields := strings.Split(text, ":")
	if len(fields) != 3 {
		return l, fmt.Errorf("layout %q is none of weibo, twitter, none and SHIFT:EPOCH:UNIT", text)
	}
	shift, err := strconv.ParseUint(fields[0], 10, 6)
	if err != nil {
		return l, fmt.Errorf("the shift of layout %q is not 0 to 63", text)
	}
	if l.Epoch, err = strconv.ParseInt(fields[1], 10, 64); err != nil {
		return l, fmt.Errorf("the epoch of layout %q is no number", text)
	}
	if l.Unit, err = time.ParseDuration(fields[2]); err != nil || l.Unit < time.Microsecond || l.Unit > time.Hour {
		return l, fmt.Errorf("the unit of layout %q is not 1us to 1h", text)
	}
	l.Shift = uint(shift)
	return l, nil
}

// String is what ParseIDLayout reads.
func (l IDLayout) String() string {
	switch l {
	case LayoutWeibo:
		return "weibo"
	case LayoutTwitter:
		return "twitter"
	case IDLayout{}:
		return "none"
	}
	return fmt.Sprintf("%d:%d:%v", l.Shift, l.Epoch, l.Unit)
}

// firstAt returns the least id of a time or later, 2^64-1 if there is none.
func (l IDLayout) firstAt(t time.Time) uint64 {
	units := t.UnixNano()/int64(l.Unit) - l.Epoch
	if units <= 0 {
		return 0
	}
	if uint64(units) > math.MaxUint64>>l.Shift {
		return math.MaxUint64
	}
	return uint64(units) << l.Shift
}

// old returns which ranges of keys of a shard hold ids of before the age only, or
// such as have no time in them.
func (l IDLayout) old(now time.Time, age time.Duration, shards int) func(first, last uint64) bool {
	if l.Unit == 0 {
		return func(uint64, uint64) bool { return false }
	}
	young, ahead := l.firstAt(now.Add(-age))/uint64(shards), l.firstAt(now.Add(coldAhead))/uint64(shards)+1
	return func(first, last uint64) bool { return last < young || first > ahead }
}

// ColdConfig says which rows leave memory, and what reading them may take.
type ColdConfig struct {
	Dir        string              // of cold rows alone; "" for Config.Dir with -cold behind
	After      time.Duration       // age of rows that leave memory; 0 for never
	SealAfter  time.Duration       // for how long ids stop coming to rows that are packed in memory; 0 for never
	CacheBytes uint64              // 0 for ColdCacheBytesDefault
	Layouts    map[string]IDLayout // by keyspace; of those not in it ids have no time
}

// check returns an error for what cannot be meant.
func (c *ColdConfig) check() error {
	if c.After < 0 || c.After > 0 && c.After < time.Second {
		return fmt.Errorf("rows cannot be cold after %v: 0 or at least 1s", c.After)
	}
	if c.SealAfter < 0 || c.SealAfter > 0 && c.SealAfter < time.Second {
		return fmt.Errorf("rows cannot be sealed after %v: 0 or at least 1s", c.SealAfter)
	}
	return nil
}

func (n *Node) openCold() error {
	dir := n.cfg.Cold.Dir
	if dir == "" {
		dir = n.cfg.Dir + "-cold"
	}
	var err error
	n.cold, err = cold.Open(cold.Config{Dir: dir, CacheBytes: n.cfg.Cold.CacheBytes, Logger: n.cfg.Logger, Fatal: n.fatal})
	if err == nil {
		n.coldStore.Store(n.cold)
	}
	return err
}

// runCold moves rows out of memory once they are old and nobody writes to them, and
// at the memory limit those that are not old too. Open starts it, Close stops and
// waits for it.
func (n *Node) runCold() {
	quiet := min(coldQuietMax, max(n.cfg.Cold.After, coldQuietMin))
	if n.cfg.Cold.After == 0 {
		return
	}
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-n.stopping:
			return
		}
		for _, g := range n.groups.Load().all {
			if r := g.replica.Load(); r != nil && n.mayFreeze() {
				n.freeze(g, r)
			}
		}
	}
}

// mayFreeze reports whether there is time and room for it.
func (n *Node) mayFreeze() bool { return !n.draining.Load() && !n.headroom.diskFull.Load() }

func (n *Node) freeze(g *counterGroup, r *replica) {
	fsm, ok := r.fsm.(*raftfsm.Counters)
	if !ok { // others stay in memory
		return
	}
	shards := len(n.groups.Load().byFirst[g.number-uint32(g.shard)])
	old := n.cfg.Cold.Layouts[g.keyspace].old(time.Now(), n.cfg.Cold.After, shards)
	proceed := n.mayFreeze
	if n.headroom.memoryFull.Load() {
		// Whatever nobody writes to, the least ids first, until there is room again.
		old = func(uint64, uint64) bool { return true }
		proceed = func() bool { return n.mayFreeze() && n.headroom.memoryFull.Load() }
	}
	began := time.Now()
	rows, err := fsm.Freeze(old, proceed)
	if err != nil {
		n.cfg.Logger.Warn("rows stay in memory, and it is tried again", "group", g.number, "err", err)
	}
	if rows > 0 {
		n.coldMoved.Add(uint64(rows))
		n.cfg.Logger.Info("rows are cold", "group", g.number, "rows", rows, "after", time.Since(began).Round(time.Millisecond).String())
	}
	n.keepCold(r, rows)
}

// keepCold takes a snapshot once a good part of the rows has left memory: without one
// that names them, a restart would begin with all of them in memory.
func (n *Node) keepCold(r *replica, rows int) {
	r.moved += uint64(rows)
	if r.moved == 0 || r.moved*coldSnapshotShare < r.fsm.State().Rows || !n.mayFreeze() {
		return
	}
	if err := r.group.snapshot(); err != nil {
		r.group.tellRoom(err) // it is tried again
		return
	}
	r.moved = 0
}

// sweepCold removes the cold rows that neither the table nor a stored snapshot of the
// group needs.
func (g *group) sweepCold() {
	if g.cfg.Cold == nil {
		return
	}
	if err := g.cfg.Cold.Sweep(g.snaps.names); err != nil {
		g.cfg.Logger.Warn("cold rows that nobody needs stay until the next snapshot", "group", g.cfg.Group, "err", err)
	}
}

// shedDamaged hands over what this node leads of shards whose cold rows it cannot
// read, where another could.
func (n *Node) shedDamaged(number uint32) bool {
	if number == raftfsm.CatalogGroup {
		return false
	}
	g := n.shardOf(number)
	if g == nil {
		return false
	}
	r := g.replica.Load()
	return r != nil && r.damaged.Load()
}
