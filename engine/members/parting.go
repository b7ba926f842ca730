package members

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// A Parting copies the sets of a group to a home for each part of a coming Split, while the group serves: see
// DESIGN.md. Its methods are safe for concurrent use.
type Parting struct {
	group *Group
	made  *copies
}

// ErrPartingEnded is returned by Step and Whole after the end of a Parting. A Split takes the homes of the parts.
// Other sets, another Parting, the removal of a damaged file and Clear end a Parting too.
var ErrPartingEnded = errors.New("the parting of members has ended")

// Part begins to part the sets. A Parting by the same Partition goes on. Another one ends, unless Split uses it.
func (g *Group) Part(by Partition, parts int) (*Parting, error) { return g.part(by, parts, false) }

// part is Part for a preparation or for Split.
func (g *Group) part(by Partition, parts int, split bool) (p *Parting, err error) {
	err = g.step(func(batch *pebble.Batch) error {
		if err := g.usable(); err != nil {
			return err
		}
		if g.closed {
			return scarce.ErrClosed
		}
		c := g.parting
		if c == nil || c.by != by || len(c.homes) != parts {
			if c != nil && c.split && !split {
				return ErrPartingEnded
			}
			c = &copies{by: by, homes: g.store.homes.take(g.number, parts), states: make([]State, parts)}
			err := g.endParting(batch)
			for _, n := range c.homes { // keys may be left if Open found damage
				err = errors.Join(err, home(n).removePairs(batch))
			}
			if g.parting = c; err != nil {
				return err
			}
		}
		c.split = c.split || split
		p = &Parting{g, c}
		return nil
	})
	return p, err
}

// Step copies some pairs. It returns false once all pairs are copied.
func (p *Parting) Step() (more bool, err error) {
	g, c := p.group, p.made
	err = g.step(func(batch *pebble.Batch) error {
		if g.parting != c {
			return ErrPartingEnded
		}
		if c.whole {
			return nil
		}
		err := c.step(g.store.present(), g.at, batch, g.store.stepPairs)
		if err == nil && c.whole {
			err = c.check(g.state)
		}
		if err != nil {
			batch.Reset()
			err = errors.Join(err, g.endParting(batch))
		}
		more = err == nil && !c.whole
		return err
	})
	return more, err
}

// Whole returns nil if all pairs are copied. It returns ErrPartingEnded after the end of the Parting.
func (p *Parting) Whole() error {
	p.group.stepping.Lock()
	defer p.group.stepping.Unlock()
	switch {
	case p.group.parting != p.made:
		return ErrPartingEnded
	case !p.made.whole:
		return fmt.Errorf("pairs are left to copy behind %+v", p.made.last)
	}
	return nil
}

// End ends the Parting, unless it has ended or Split uses it. No preparation needs it any more.
func (p *Parting) End() {
	_ = p.group.step(func(batch *pebble.Batch) error {
		if p.group.parting != p.made || p.made.split {
			return nil
		}
		return p.group.endParting(batch)
	})
}
