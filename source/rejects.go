package source

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/source/sink"
)

const (
	// rejectsMax bounds the refusals that wait to be recorded. If recording fails while more wait,
	// the session ends.
	rejectsMax = 10_000
	// rejectsPerTick bounds the commands between two ticks, because all partitions share the
	// catalog.
	rejectsPerTick = 10
	// rejectsTimeout bounds one attempt, during which the reader waits.
	rejectsTimeout = time.Second
)

// rejects has the refusals that are not recorded yet. It outlives a session. The refusals below
// the position of the session are complete, because no op is refused after its message was passed.
// Only complete refusals are recorded, in order, so each is recorded once.
type rejects struct {
	waiting  []sink.Refusal
	ids      map[string]bool // the IDs of the letters of waiting; a repeated batch may refuse an op again
	recorded int             // attempts since the last tick
}

// reject counts refusals and adds them to those that wait to be recorded.
func (r *Runner) reject(letters []Letter) {
	r.status.rejected(len(letters))
	if r.cfg.Rejected == nil {
		return
	}
	for i := range letters {
		l := &letters[i]
		if id := l.ID(); !r.rejects.ids[id] {
			r.rejects.ids[id] = true
			r.rejects.waiting = append(r.rejects.waiting, sink.Refusal{Position: l.Position, Reason: l.Reason})
		}
	}
}

// recordRejects records the refusals of messages below a position. It returns an error only if too many wait.
func (r *Runner) recordRejects(ctx context.Context, below Position) error {
	if len(r.rejects.waiting) == 0 || r.rejects.recorded >= rejectsPerTick {
		return nil
	}
	slices.SortStableFunc(r.rejects.waiting, func(a, b sink.Refusal) int { return a.Position.Compare(b.Position) })
	n, _ := slices.BinarySearchFunc(r.rejects.waiting, below, func(of sink.Refusal, p Position) int { return of.Position.Compare(p) })
	if n == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rejectsTimeout)
	defer cancel()
	r.rejects.recorded++
	err := r.cfg.Rejected(ctx, r.cfg.Partition, r.rejects.waiting[:n])
	switch {
	case err == nil:
		if r.rejects.waiting = slices.Delete(r.rejects.waiting, 0, n); len(r.rejects.waiting) == 0 {
			clear(r.rejects.ids) // before that, ids also has passed messages
		}
		return nil
	case len(r.rejects.waiting) > rejectsMax:
		return fmt.Errorf("cannot record what was rejected: %w", err)
	}
	r.rejects.recorded = rejectsPerTick // try again after the next tick
	r.cfg.Logger.Debug("what was rejected is not recorded yet", "source", r.cfg.Source.Name, "partition", r.cfg.Partition, "err", err)
	return nil
}
