package tiering

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/shard/errs"
)

const (
	// coldAskedQuiet is for how long nobody may have written to a segment before a job moves
	// it. It is less than coldQuietMax, because an operator waits for the job.
	coldAskedQuiet = 2 * time.Second
	// coldStepSegments is how much moves between two looks whether it is to go on.
	coldStepSegments = 16
	// KeptMax bounds the ranges of ids that are kept in memory.
	KeptMax = 64
)

var errColdStopped = errors.New("it was stopped")

// Queue holds the job that an operator ordered until Tiering.Run has done it, one at a
// time, and the ranges that earlier jobs keep in memory.
type Queue struct {
	asked chan struct{} // a token while there is work that was not begun

	mu struct {
		sync.Mutex
		work  *ColdWork  // the newest; nil for none since the start
		order TieringJob // that it follows
		ends  bool       // it is to end where it is
		kept  []ColdKept
	}
}

// ColdWork is what a node does, or did last, as it was ordered to.
type ColdWork struct {
	ID       string    `json:"id"`
	Verb     ColdVerb  `json:"verb"`
	Keyspace string    `json:"keyspace,omitempty"` // "" for all
	Began    time.Time `json:"began"`
	Running  bool      `json:"running"`
	Rows     uint64    `json:"rows"`             // that have moved
	Of       uint64    `json:"of"`               // about, as it was when it began
	Failed   string    `json:"failed,omitempty"` // why not all could
}

// ColdKept is a range of ids whose rows do not leave memory for their age.
type ColdKept struct {
	Keyspace string    `json:"keyspace"`
	From     uint64    `json:"from,string"`
	To       uint64    `json:"to,string"`
	Until    time.Time `json:"until"`
}

// refuses says why an order cannot be taken now, or "".
func (d *Queue) refuses(o *TieringJob) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refusesLocked(o)
}

func (d *Queue) refusesLocked(o *TieringJob) string {
	switch {
	case d.mu.work != nil && d.mu.work.Running:
		if d.mu.work.ID == o.ID {
			return ""
		}
		return "it is at an earlier order: wait for that, or stop it"
	case o.Verb == ColdWarm && len(d.keptLocked()) >= KeptMax:
		return fmt.Sprintf("it keeps %d ranges of ids in memory, which is the most", KeptMax)
	}
	return ""
}

// begin takes an order, unless it is the one that is followed, or says why not. A
// migration ends what an earlier order has of its rows kept in memory.
func (d *Queue) begin(o TieringJob, rows uint64) (refused string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if refused := d.refusesLocked(&o); refused != "" || d.mu.work != nil && d.mu.work.Running {
		return refused
	}
	d.mu.kept = slices.DeleteFunc(d.keptLocked(), o.ends)
	now := time.Now()
	if o.Verb == ColdWarm {
		d.mu.kept = append(d.mu.kept, ColdKept{o.Keyspace, o.From, o.To, now.Add(o.Keep)})
	}
	d.mu.order, d.mu.ends = o, false
	d.mu.work = &ColdWork{ID: o.ID, Verb: o.Verb, Keyspace: o.Keyspace, Began: now, Running: true, Of: rows}
	d.asked <- struct{}{} // there is room: what was asked before has ended
	return ""
}

// ends reports whether an order is in the place of an earlier one.
func (o *TieringJob) ends(k ColdKept) bool {
	if o.Verb == ColdMigrate {
		return o.Keyspace == "" || o.Keyspace == k.Keyspace
	}
	return k.Keyspace == o.Keyspace && k.From == o.From && k.To == o.To
}

// keptLocked returns the ranges whose time is not over.
func (d *Queue) keptLocked() (kept []ColdKept) {
	now := time.Now()
	for _, k := range d.mu.kept {
		if now.Before(k.Until) {
			kept = append(kept, k)
		}
	}
	return kept
}

// unlessKept is old but for rows that are kept.
func (d *Queue) unlessKept(s *Shard, old func(first, last uint64) bool) func(first, last uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := d.keptLocked()
	return func(first, last uint64) bool {
		for _, k := range kept {
			if k.Keyspace == s.Keyspace && first <= k.To/s.PerKey && last >= k.From/s.PerKey {
				return false
			}
		}
		return old(first, last)
	}
}

// stop has the work end where it is, and warmed rows be as others.
func (d *Queue) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.ends, d.mu.kept = true, nil
}

func (d *Queue) toEnd() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.ends
}

// moved tells that more rows have.
func (d *Queue) moved(rows int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.work.Rows += uint64(rows)
}

func (d *Queue) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.work.Running = false; err != nil {
		d.mu.work.Failed = err.Error()
	}
}

// Report returns the newest work, nil for none, and what is kept in memory.
func (d *Queue) Report() (work *ColdWork, kept []ColdKept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.work != nil {
		now := *d.mu.work
		work = &now
	}
	return work, d.keptLocked()
}

// workCold does the job in the queue.
func (t *Tiering) workCold() {
	t.Queue.mu.Lock()
	o := t.Queue.mu.order
	t.Queue.mu.Unlock()
	began, follow := time.Now(), t.warmRows
	if o.Verb == ColdMigrate {
		follow = t.migrate
	}
	err := follow(&o)
	t.Queue.end(err)
	work, _ := t.Queue.Report()
	t.cfg.Logger.Info("moved cold rows for an operator", "verb", o.Verb, "keyspace", o.Keyspace, "rows", work.Rows,
		"after", time.Since(began).Round(time.Millisecond).String(), "err", err)
}

// migrate moves rows out of memory near which nobody writes now.
func (t *Tiering) migrate(o *TieringJob) error {
	all := t.Leaving(o.isFor)
	for _, l := range all {
		l.FSM.Watch(t.agedBy(o, l.Shard))
	}
	if err := t.awaitQuiet(); err != nil {
		return err
	}
	var damaged error
	for _, l := range all {
		l.idle = l.FSM.Watch(t.agedBy(o, l.Shard))
		if err := t.migrateShard(l); errors.Is(err, cold.ErrDamaged) {
			damaged = err
		} else if err != nil {
			return err
		}
		t.keepCold(l)
	}
	return damaged
}

func (t *Tiering) migrateShard(l *Leaving) error {
	for l.idle.Segments() > 0 {
		switch {
		case t.Queue.toEnd():
			return errColdStopped
		case t.cfg.Draining.Load():
			return errs.ErrDraining
		case t.cfg.Headroom.DiskFull.Load():
			return errs.ErrDiskFull
		}
		before := l.rows
		err := t.freeze(l, coldStepSegments, t.rest)
		t.Queue.moved(l.rows - before)
		if err != nil {
			return err
		}
	}
	if l.Damage.Found() {
		return fmt.Errorf("group %d: %w", l.Group, cold.ErrDamaged)
	}
	return nil
}

// awaitQuiet waits for coldAskedQuiet.
func (t *Tiering) awaitQuiet() error {
	select {
	case <-time.After(coldAskedQuiet):
		return nil
	case <-t.cfg.Stopping:
		return errs.ErrDraining
	}
}

// warmRows brings rows back into memory. Damaged ones stay where they are, and others
// come.
func (t *Tiering) warmRows(o *TieringJob) error {
	var damaged error
	for _, l := range t.Leaving(o.isFor) {
		if err := t.warmShard(o, l); errors.Is(err, cold.ErrDamaged) {
			damaged = err
		} else if err != nil {
			return err
		}
	}
	return damaged
}

func (t *Tiering) warmShard(o *TieringJob, l *Leaving) error {
	var damaged error
	next, to := o.keys(l.PerKey)
	for more := true; more; {
		switch {
		case t.Queue.toEnd():
			return errColdStopped
		case t.cfg.Draining.Load():
			return errs.ErrDraining
		case t.cfg.Headroom.MemoryTight.Load():
			return errs.ErrMemoryFull
		}
		var rows int
		var err error
		began := time.Now()
		rows, next, more, err = l.FSM.Warm(next, to)
		t.Queue.moved(rows)
		t.warmed.Add(uint64(rows))
		if errors.Is(err, cold.ErrDamaged) {
			l.Damage.Note(err)
			damaged = fmt.Errorf("group %d: %w", l.Group, cold.ErrDamaged) // the log says which
		} else if err != nil {
			return err
		}
		t.rest(time.Since(began))
	}
	return damaged
}
