package tiering

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
)

const (
	// layoutAhead is how far in the future the time of an id of a layout may lie, as
	// clocks differ.
	layoutAhead = 24 * time.Hour
	// timedIDMin is the least id that a layout says anything of. Lesser ones, of fewer
	// than ten digits, are numbered from 1 on under any layout.
	timedIDMin = 1_000_000_000
	// layoutBegins is the age of a layout, from its epoch on, at its first id. Numbers
	// from 1 on, and ids that count larger units of time, fall before that.
	layoutBegins = 30 * 24 * time.Hour
)

// weiboBegins is the month in which the service of LayoutWeibo opened, 23 years after its
// epoch.
var weiboBegins = time.Date(2009, time.August, 1, 0, 0, 0, 0, time.UTC)

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
	if l.Unit, err = time.ParseDuration(fields[2]); err != nil || l.Unit < time.Microsecond || l.Unit > time.Hour || l.Unit%time.Microsecond != 0 {
		return l, fmt.Errorf("the unit of layout %q is not 1us to 1h, in whole microseconds", text)
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

// FirstAt returns the least id of a time or later, 2^64-1 if there is none.
func (l IDLayout) FirstAt(t time.Time) uint64 {
	units := t.UnixNano()/int64(l.Unit) - l.Epoch
	if units <= 0 {
		return 0
	}
	if uint64(units) > math.MaxUint64>>l.Shift {
		return math.MaxUint64
	}
	return uint64(units) << l.Shift
}

// First returns the least id that a layout can have given.
func (l IDLayout) First() (first uint64) {
	if l == LayoutWeibo {
		first = l.FirstAt(weiboBegins)
	} else if units := uint64(layoutBegins / l.Unit); units <= math.MaxUint64>>l.Shift {
		first = units << l.Shift
	} else {
		first = math.MaxUint64
	}
	return max(first, timedIDMin)
}

// last returns the greatest id, or a little more, that a layout can have given until now.
func (l IDLayout) last(now time.Time) uint64 { return l.FirstAt(now.Add(layoutAhead)) }

// firstKey returns the least key of a shard all of whose ids the layout can have given.
func (l IDLayout) firstKey(perKey uint64) uint64 {
	return (l.First()-1)/perKey + 1
}

// old returns which ranges of keys of a shard hold ids of before the age only. An id that
// the layout cannot have given is never old.
func (l IDLayout) old(now time.Time, age time.Duration, perKey uint64) func(first, last uint64) bool {
	if l.Unit == 0 {
		return func(uint64, uint64) bool { return false }
	}
	begins, young := l.firstKey(perKey), l.FirstAt(now.Add(-age))/perKey
	return func(first, last uint64) bool { return first >= begins && last < young }
}

// Misfit describes rows in memory whose ids the layout of their keyspace cannot have
// produced. They stay in memory whatever their age.
type Misfit struct {
	ID     uint64 `json:"id,string"` // one of them
	Layout string `json:"layout"`
	// Fits is a layout that can have given more of the replica's ids, none if no layout
	// can have given any, and "" if there is no better one.
	Fits string `json:"fits"`
	Rows int    `json:"rows"` // in memory, about
}

// Misfit returns nil if the layout can have given the ids of all rows in memory of a shard,
// nil for one of another kind than counters, but for those below timedIDMin, which have no
// time under any layout.
func (t *Tiering) Misfit(s *Shard) *Misfit {
	if s == nil || t.cfg.Cold.Layouts[s.Keyspace].Unit == 0 {
		return nil
	}
	layout, fsm := t.cfg.Cold.Layouts[s.Keyspace], s.FSM
	table, now := fsm.Table(), time.Now()
	key, below := table.InMemory(timedIDMin/s.PerKey+1, layout.firstKey(s.PerKey)-1)
	above := 0
	if end := layout.last(now)/s.PerKey + 1; end <= math.MaxUint64/s.PerKey {
		first, rows := table.InMemory(end, math.MaxUint64)
		if above = rows; below == 0 {
			key = first
		}
	}
	if below+above == 0 {
		return nil
	}
	m := &Misfit{ID: key*s.PerKey + s.Offset, Layout: layout.String(), Rows: below + above}
	m.Fits = betterLayout(table, s.PerKey, layout, int(fsm.State().ColdRows), now)
	return m
}

// betterLayout returns Misfit.Fits of a table with so many rows on disk, whose ids the
// layout has given.
func betterLayout(table *engine.Table, perKey uint64, layout IDLayout, onDisk int, now time.Time) (name string) {
	fit := func(l IDLayout) int {
		_, rows := table.InMemory(l.firstKey(perKey), l.last(now)/perKey)
		return rows
	}
	most := fit(layout) + onDisk
	if most == 0 {
		name = IDLayout{}.String()
	}
	for _, l := range []IDLayout{LayoutWeibo, LayoutTwitter} {
		if rows := fit(l); rows > most {
			most, name = rows, l.String()
		}
	}
	return name
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

// Check returns an error for what cannot be meant.
func (c *ColdConfig) Check() error {
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
