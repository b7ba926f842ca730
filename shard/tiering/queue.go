package tiering

import (
	"errors"
	"fmt"
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
)

var errColdStopped = errors.New("it was stopped")

// Queue holds the job that an operator ordered until Tiering.Run has done it, one at a
// time.
type Queue struct {
	asked chan struct{} // a token while there is work that was not begun

	mu struct {
		sync.Mutex
		work  *ColdWork  // the newest; nil for none since the start
		order TieringJob // that it follows
		ends  bool       // it is to end where it is
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

// refuses says why an order cannot be taken now, or "".
func (d *Queue) refuses(o *TieringJob) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refusesLocked(o)
}

func (d *Queue) refusesLocked(o *TieringJob) string {
	if d.mu.work != nil && d.mu.work.Running && d.mu.work.ID != o.ID {
		return "it is at an earlier order: wait for that, or stop it"
	}
	return ""
}

// begin queues an order, unless that order is running already. It returns why it refuses
// an order, or "".
func (d *Queue) begin(o TieringJob, rows uint64) (refused string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if refused := d.refusesLocked(&o); refused != "" || d.mu.work != nil && d.mu.work.Running {
		return refused
	}
	d.mu.order, d.mu.ends = o, false
	d.mu.work = &ColdWork{ID: o.ID, Verb: o.Verb, Keyspace: o.Keyspace, Began: time.Now(), Running: true, Of: rows}
	d.asked <- struct{}{} // there is room: what was asked before has ended
	return ""
}

// stop ends the work where it is.
func (d *Queue) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.ends = true
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

// Report returns the newest work, nil for none.
func (d *Queue) Report() *ColdWork {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.work == nil {
		return nil
	}
	work := *d.mu.work
	return &work
}

// workCold does the job in the queue.
func (t *Tiering) workCold() {
	t.Queue.mu.Lock()
	o := t.Queue.mu.order
	t.Queue.mu.Unlock()
	began := time.Now()
	err := t.migrate(&o)
	t.Queue.end(err)
	t.cfg.Logger.Info("moved cold rows for an operator", "keyspace", o.Keyspace, "rows", t.Queue.Report().Rows,
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
