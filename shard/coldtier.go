package shard

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/countd/countd/engine/cold"
)

const (
	// coldAhead is how far in the future an id's time may lie. What lies further
	// carries no time of this layout, and is old.
	coldAhead = 24 * time.Hour
	// timedIDMin is the least id that a layout says anything of. Lesser ones, of fewer
	// than ten digits, were numbered from 1 on by who has no layout: by its formula
	// all would date from the days of its epoch, and go to disk while they are new.
	// The old forms of ids that carry time have ten digits or more.
	timedIDMin = 1_000_000_000
)

// ColdAfterDefault is when a row is cold by the time in its id.
const ColdAfterDefault = 180 * 24 * time.Hour

// ScrubEveryDefault is how often all cold rows are read to find damage: a disk that
// loses something is seldom found out by another loss within a week.
const ScrubEveryDefault = 7 * 24 * time.Hour

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

// timedFrom is the least key of a shard all of whose ids a layout tells the time of.
func timedFrom(r route) uint64 { return (timedIDMin + r.perKey() - 1) / r.perKey() }

// old returns which ranges of keys of a shard hold ids of before the age only, or
// such as are of another form. Ids below timedIDMin are never old.
func (l IDLayout) old(now time.Time, age time.Duration, r route) func(first, last uint64) bool {
	if l.Unit == 0 {
		return func(uint64, uint64) bool { return false }
	}
	young, ahead := l.firstAt(now.Add(-age))/r.perKey(), l.firstAt(now.Add(coldAhead))/r.perKey()+1
	timed := timedFrom(r)
	return func(first, last uint64) bool { return first >= timed && (last < young || first > ahead) }
}

// ColdConfig says which rows leave memory, and what reading them may take.
type ColdConfig struct {
	Dir        string              // of cold rows alone; "" for Config.Dir with -cold behind
	After      time.Duration       // age of rows that leave memory; 0 for never
	SealAfter  time.Duration       // age of rows that are packed in memory; 0 for never
	ScrubEvery time.Duration       // how often all are read to find damage; 0 for never
	CacheBytes uint64              // 0 for ColdCacheBytesDefault
	Layouts    map[string]IDLayout // by keyspace; of those not in it ids have no time
}

// check returns an error for what cannot be meant.
func (c *ColdConfig) check() error {
	for _, d := range []struct {
		what string
		is   time.Duration
	}{
		{"cold after", c.After}, {"packed after", c.SealAfter}, {"scrubbed every", c.ScrubEvery},
	} {
		if d.is < 0 || d.is > 0 && d.is < time.Second {
			return fmt.Errorf("rows cannot be %s %v: 0 or at least 1s", d.what, d.is)
		}
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
