package rows

import (
	"slices"
	"sync"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// Parting moves the rows of the tables of one machine to the tables of the parts of a coming split:
// see engine.Parting.
type Parting struct {
	// Lock is held during each step. Whoever seals rows of the tables or moves them to disk holds it too.
	Lock *sync.Mutex
	// Pauses is above 0 while nobody may seal rows or move them to disk. Lock guards it.
	Pauses int

	// The partings of the tables, while rows are left to move. They have memory for the next step.
	by     raftfsm.Partition
	tables []*engine.Table
	steps  []*engine.Parting
}

// Step moves some rows of the first table that has rows left to move. It returns false once all
// tables have none. Other tables, or another Partition, begin another parting. The caller holds Lock.
func (p *Parting) Step(by raftfsm.Partition, tables ...*engine.Table) (more bool, err error) {
	if p.by != by || !slices.Equal(p.tables, tables) {
		p.Drop()
		p.by = by
		for _, t := range tables {
			of, err := engine.NewParting(t, by)
			if err != nil {
				p.Drop()
				return false, err
			}
			p.tables, p.steps = append(p.tables, t), append(p.steps, of)
		}
	}
	for _, of := range p.steps {
		if more, err = of.Step(); more || err != nil {
			return more, err
		}
	}
	p.Drop()
	return false, nil
}

// Drop releases the tables and the memory for the next step. Tables that are half parted stay so. The
// caller holds Lock.
func (p *Parting) Drop() { p.tables, p.steps = nil, nil }

// Pause adds n to Pauses. It waits until nobody makes a step, seals rows or moves them to disk.
func (p *Parting) Pause(n int) {
	p.Lock.Lock()
	defer p.Lock.Unlock()
	p.Pauses += n
}

// finish moves all rows of tables that are left to move. No row moves to disk between the steps.
func (p *Parting) finish(by raftfsm.Partition, tables ...*engine.Table) error {
	p.Pause(1)
	defer p.Pause(-1)
	for more := true; more; {
		var err error
		p.Lock.Lock() // for each step, so that nobody else waits for all of them
		more, err = p.Step(by, tables...)
		p.Lock.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}
