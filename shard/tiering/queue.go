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
	// coldAskedQuiet is the time without writes after which a job may move a segment. It is shorter
	// than coldQuietMax, because an operator waits for the job.
	coldAskedQuiet = 2 * time.Second
	// coldStepSegments is the number of segments that a job moves before it checks again whether to
	// stop.
	coldStepSegments = 16
)

var errColdStopped = errors.New("it was stopped")

// Queue holds an operator's job until Tiering.Run has run it.
type Queue struct {
	asked chan struct{} // capacity 1; a token means that the job in mu has not begun

	mu struct {
		sync.Mutex
		work *ColdWork  // report of the newest job; nil if there was none since the start
		job  TieringJob // order of the newest job
		ends bool       // stop was called for the newest job
	}
}

// ColdWork reports the job that a node runs, or ran last.
type ColdWork struct {
	ID       string    `json:"id"`
	Verb     ColdVerb  `json:"verb"`
	Keyspace string    `json:"keyspace,omitempty"` // "" for all
	Began    time.Time `json:"began"`
	Running  bool      `json:"running"`
	Rows     uint64    `json:"rows"`             // number of rows moved so far
	Of       uint64    `json:"of"`               // number of rows to move, estimated when the job began
	Failed   string    `json:"failed,omitempty"` // why the job did not complete
}

// begin queues a job, unless it is a dry run or the same job is already running. If it refuses the
// job, it returns the reason.
func (d *Queue) begin(o TieringJob, rows uint64) (refused string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	running := d.mu.work != nil && d.mu.work.Running
	switch {
	case running && d.mu.work.ID != o.ID:
		return "it is at an earlier order: wait for that, or stop it"
	case running || o.DryRun:
		return ""
	}
	d.mu.job, d.mu.ends = o, false
	d.mu.work = &ColdWork{ID: o.ID, Verb: o.Verb, Keyspace: o.Keyspace, Began: time.Now(), Running: true, Of: rows}
	d.asked <- struct{}{} // never blocks: the previous job has ended, so its token was received
	return ""
}

// stop ends the running job after its current step.
func (d *Queue) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.ends = true
}

// moved adds to the number of moved rows. It reports whether stop was called.
func (d *Queue) moved(rows int) (stopped bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.work.Rows += uint64(rows)
	return d.mu.ends
}

func (d *Queue) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.work.Running = false; err != nil {
		d.mu.work.Failed = err.Error()
	}
}

// Report returns the newest job, or nil.
func (d *Queue) Report() *ColdWork {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.work == nil {
		return nil
	}
	work := *d.mu.work
	return &work
}

// workCold runs the job in the queue.
func (t *Tiering) workCold() {
	t.Queue.mu.Lock()
	o := t.Queue.mu.job
	t.Queue.mu.Unlock()
	began := time.Now()
	err := t.migrate(&o)
	t.Queue.end(err)
	t.cfg.Logger.Info("moved cold rows for an operator", "keyspace", o.Keyspace, "rows", t.Queue.Report().Rows,
		"after", time.Since(began).Round(time.Millisecond).String(), "err", err)
}

// migrate moves the rows that a job selects out of memory. It skips segments that are being
// written.
func (t *Tiering) migrate(o *TieringJob) error {
	all := t.Leaving(o.isFor)
	for _, l := range all {
		l.FSM.Watch(t.agedBy(o, l.Shard), false)
	}
	select {
	case <-time.After(coldAskedQuiet):
	case <-t.cfg.Stopping:
		return errs.ErrDraining
	}
	var damaged error
	for _, l := range all {
		l.idle = l.FSM.Watch(t.agedBy(o, l.Shard), false)
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
		case t.cfg.Draining.Load():
			return errs.ErrDraining
		case t.cfg.Headroom.DiskFull.Load():
			return errs.ErrDiskFull
		}
		before := l.rows
		err := t.freeze(l, coldStepSegments, t.rest)
		if stopped := t.Queue.moved(l.rows - before); stopped && err == nil {
			err = errColdStopped
		}
		if err != nil {
			return err
		}
	}
	if l.Damage.Found() {
		return fmt.Errorf("group %d: %w", l.Group, cold.ErrDamaged)
	}
	return nil
}
