package source

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/source/sink"
)

const (
	// rejectsMax bounds the refusals that wait to be recorded. A reader with more of them waits too.
	rejectsMax = 10_000
	// rejectsPerTick bounds how often they are recorded between two ticks, since the catalog records
	// those of all partitions.
	rejectsPerTick = 10
	// rejectsTimeout bounds one attempt, which holds up the reader.
	rejectsTimeout = time.Second
)

// rejects are refusals that are not recorded. They outlive a session. Those of messages below the position
// of the session are complete: an op is refused late only before its message is passed. What
// is recorded is what is complete, in order, so that each refusal is recorded once.
type rejects struct {
	waiting  []sink.Refusal
	ids      map[string]bool // of the letters of waiting: an op may be refused again when its batch is tried again
	recorded int             // times since the last tick
}

// reject counts what is refused.
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

// recordRejects records the refusals of messages below a position. It fails only if too many wait.
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
	err := r.cfg.Rejected(ctx, r.rejects.waiting[:n])
	switch {
	case err == nil:
		if r.rejects.waiting = slices.Delete(r.rejects.waiting, 0, n); len(r.rejects.waiting) == 0 {
			clear(r.rejects.ids) // until then they are of messages that were passed, too
		}
		return nil
	case len(r.rejects.waiting) > rejectsMax:
		return fmt.Errorf("cannot record what was rejected: %w", err)
	}
	r.rejects.recorded = rejectsPerTick // again after the next tick
	r.cfg.Logger.Debug("what was rejected is not recorded yet", "source", r.cfg.Source.Name, "partition", r.cfg.Partition, "err", err)
	return nil
}
