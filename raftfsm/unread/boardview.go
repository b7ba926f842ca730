package unread

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
)

const (
	// NameBytesMax bounds the name of a channel or dot.
	NameBytesMax = 63
	// RetractedMax bounds Channel.Retracted.
	RetractedMax = 10_000
)

// BoardView is the board after one entry. All readers share it, so nothing may change it. Each
// channel or dot has a name and a number. The number is also the column of its cursors.
type BoardView struct {
	Channels map[string]Channel `json:"channels"`
	Dots     map[string]Dot     `json:"dots"`
}

// Channel describes a list of notices, numbered from 1, as far as is needed to count unread
// notices.
type Channel struct {
	Number uint8 `json:"number"` // column of its cursors, 1 to CursorsMax
	Latest int64 `json:"latest"` // number of the last notice
	// All notices up to Floor are retracted, and notice Floor+1 is not. Retracted holds the other
	// retracted notices, ascending.
	Floor     int64   `json:"floor"`
	Retracted []int64 `json:"retracted"`
}

// Dot is a red dot. A user sees it from a firing until the user clears it.
type Dot struct {
	Number   uint8 `json:"number"`    // column of its cursors, 1 to CursorsMax
	Fired    int64 `json:"fired"`     // number of firings
	NewUsers bool  `json:"new_users"` // users without a row of cursors see the dot, too
}

// Unread returns the number of unretracted notices with higher numbers than after. It takes
// logarithmic time.
func (c *Channel) Unread(after int64) int64 {
	after = max(after, c.Floor, 0)
	if after >= c.Latest {
		return 0
	}
	at, found := slices.BinarySearch(c.Retracted, after)
	if found {
		at++
	}
	return c.Latest - after - int64(len(c.Retracted)-at)
}

// names returns the number of channels and dots.
func (v *BoardView) names() int { return len(v.Channels) + len(v.Dots) }

// number returns the lowest free number, or 0 if there is none.
func (v *BoardView) number() uint8 {
	for n := uint8(1); n <= CursorsMax; n++ {
		if !v.has(n) {
			return n
		}
	}
	return 0
}

func (v *BoardView) has(number uint8) bool {
	for _, c := range v.Channels {
		if c.Number == number {
			return true
		}
	}
	for _, d := range v.Dots {
		if d.Number == number {
			return true
		}
	}
	return false
}

// digest returns the sum of the hashes of all channels and dots.
func (v *BoardView) digest() uint64 {
	sum := uint64(0)
	for name, c := range v.Channels {
		sum += c.digest(name)
	}
	for name, d := range v.Dots {
		sum += d.digest(name)
	}
	return sum
}

func (c *Channel) digest(name string) uint64 {
	sum := nameDigest("channel", name, int64(c.Number), c.Latest, c.Floor)
	for _, seq := range c.Retracted {
		sum += wire.MixNext(uint64(seq)) * (2*uint64(c.Number) + 1)
	}
	return sum
}

func (d *Dot) digest(name string) uint64 {
	return nameDigest("dot", name, int64(d.Number), d.Fired, int64(wire.Bit(d.NewUsers)))
}

func nameDigest(kind, name string, values ...int64) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %s %d", kind, name, values) // a write to a hash never fails
	return wire.MixNext(h.Sum64())
}

// clone returns a copy of the view with its own maps.
func (v *BoardView) clone() *BoardView {
	next := &BoardView{Channels: map[string]Channel{}, Dots: map[string]Dot{}}
	maps.Copy(next.Channels, v.Channels)
	maps.Copy(next.Dots, v.Dots)
	return next
}

// check returns an error for a board that no ops produce.
func (v *BoardView) check() error {
	taken := map[uint8]bool{}
	number := func(name string, n uint8) error {
		if len(name) < 1 || len(name) > NameBytesMax || n < 1 || n > CursorsMax || taken[n] {
			return fmt.Errorf("%q has the number %d", name, n)
		}
		taken[n] = true
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(v.Channels)) {
		c := v.Channels[name]
		if err := cmp.Or(number(name, c.Number), c.check(name)); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.Dots)) {
		if err := number(name, v.Dots[name].Number); err != nil {
			return err
		}
		if v.Dots[name].Fired < 0 {
			return fmt.Errorf("dot %q was fired %d times", name, v.Dots[name].Fired)
		}
	}
	return nil
}

func (c *Channel) check(name string) error {
	if c.Floor < 0 || c.Latest < c.Floor || len(c.Retracted) > RetractedMax {
		return fmt.Errorf("channel %q: latest %d, floor %d, %d retracted", name, c.Latest, c.Floor, len(c.Retracted))
	}
	last := c.Floor + 1
	for _, seq := range c.Retracted {
		if seq <= last || seq > c.Latest {
			return fmt.Errorf("channel %q: notice %d is retracted behind %d", name, seq, last)
		}
		last = seq
	}
	return nil
}

// CursorsEnd returns the highest value that a cursor may have in each column. It is one above the
// channel's last notice or the dot's last firing. It is 0 for a number without a channel or dot.
// The column of the day has no bound.
func (v *BoardView) CursorsEnd() (end [engine.ColumnsMax]int64) {
	end[CursorDay] = math.MaxInt64
	for _, c := range v.Channels {
		end[c.Number] = c.Latest + 1
	}
	for _, d := range v.Dots {
		end[d.Number] = d.Fired + 1
	}
	return end
}

// LastRead returns the last notice that a user has read. row is the user's row of cursors. It
// returns false for a user without a cursor in the channel.
func (c *Channel) LastRead(row []int64) (seq int64, seen bool) {
	if at := row[c.Number]; at > 0 {
		return at - 1, true
	}
	return 0, false
}

// Shows reports whether a user sees the dot. row is the user's row of cursors.
func (d *Dot) Shows(row []int64) bool {
	if d.Fired == 0 || row[CursorDay] == 0 {
		return d.Fired > 0 && d.NewUsers
	}
	return d.Fired > row[d.Number]-1 // without a cursor, the right side is -1
}
