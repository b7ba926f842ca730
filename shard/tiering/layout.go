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
	// layoutAhead is how far in the future the time in an id may be, because clocks differ.
	layoutAhead = 24 * time.Hour
	// timedIDMin is the smallest id that can contain a time. Smaller ids, of fewer than ten
	// digits, count as sequential numbers in every layout.
	timedIDMin = 1_000_000_000
	// layoutBegins is the time from the epoch of a layout to its first id. Ids with an earlier time
	// are probably sequential, or count a larger unit of time.
	layoutBegins = 30 * 24 * time.Hour
)

// weiboBegins is the month of the first Weibo ids, 23 years after their epoch.
var weiboBegins = time.Date(2009, time.August, 1, 0, 0, 0, 0, time.UTC)

// ColdAfterDefault is the age from which a row is cold, by the time in its id.
const ColdAfterDefault = 180 * 24 * time.Hour

// ScrubEveryDefault is the interval at which the node reads all cold rows to find damage. Two
// replicas rarely lose data within the same week.
const ScrubEveryDefault = 7 * 24 * time.Hour

// ColdCacheBytesDefault bounds the cache of cold rows: about 5 million rows.
const ColdCacheBytesDefault = cold.CacheBytesDefault

// IDLayout describes the time in the ids of a keyspace: an id shifted right by Shift is a number
// of units since the epoch. Ids of the zero layout contain no time.
type IDLayout struct {
	Shift uint
	Unit  time.Duration // 0 for ids without time
	Epoch int64         // epoch, in units since 1970
}

var (
	LayoutWeibo   = IDLayout{Shift: 22, Unit: time.Second, Epoch: 515483463}
	LayoutTwitter = IDLayout{Shift: 22, Unit: time.Millisecond, Epoch: 1288834974657}
)

// ParseIDLayout parses weibo, twitter, none or SHIFT:EPOCH:UNIT. UNIT is a duration such as 1s or
// 1ms, and EPOCH a number of units.
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

// String returns the text that ParseIDLayout parses.
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

// FirstAt returns the smallest id of time t or later; 2^64-1 if there is none.
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

// First returns the smallest valid id of the layout.
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

// last returns an upper bound of the ids that are valid in the layout at the given time.
func (l IDLayout) last(now time.Time) uint64 { return l.FirstAt(now.Add(layoutAhead)) }

// firstKey returns the smallest key of a shard whose ids are all valid in the layout.
func (l IDLayout) firstKey(perKey uint64) uint64 {
	return (l.First()-1)/perKey + 1
}

// old returns a function that reports whether all ids of a range of keys are older than age. An id
// that is invalid in the layout is never old.
func (l IDLayout) old(now time.Time, age time.Duration, perKey uint64) func(first, last uint64) bool {
	if l.Unit == 0 {
		return func(uint64, uint64) bool { return false }
	}
	begins, young := l.firstKey(perKey), l.FirstAt(now.Add(-age))/perKey
	return func(first, last uint64) bool { return first >= begins && last < young }
}

// Misfit describes rows in memory whose ids are invalid in the layout of their keyspace. They stay
// in memory at any age.
type Misfit struct {
	ID     uint64 `json:"id,string"` // id of one of the rows
	Layout string `json:"layout"`
	// Fits is a layout in which more of the replica's ids are valid. It is "none" if no id is
	// valid in any layout, and "" if no layout is better.
	Fits string `json:"fits"`
	Rows int    `json:"rows"` // number of rows in memory, approximately
}

// Misfit returns the misfit of a shard, or nil if all ids are valid, contain no time or are texts. It ignores
// ids below timedIDMin.
func (t *Tiering) Misfit(s *Shard) *Misfit {
	if s == nil || t.layout(s).Unit == 0 {
		return nil
	}
	layout, fsm := t.layout(s), s.FSM
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

// betterLayout returns Misfit.Fits for a table. onDisk is the number of rows on disk. They count as
// valid in the present layout, which selected them for the move to disk.
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

// ColdConfig configures which rows leave memory.
type ColdConfig struct {
	Dir        string              // directory of the cold rows; "" for shard.Config.Dir with the suffix -cold
	After      time.Duration       // age at which rows leave memory; 0 for never
	SealAfter  time.Duration       // age at which rows are packed in memory; 0 for never
	ScrubEvery time.Duration       // interval at which all cold rows are read to find damage; 0 for never
	CacheBytes uint64              // 0 for ColdCacheBytesDefault
	Layouts    map[string]IDLayout // by keyspace; the ids of other keyspaces contain no time
}

// Check returns an error for a duration that is out of bounds.
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
