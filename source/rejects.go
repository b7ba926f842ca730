package source

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/source/sink"
)

const (
	// rejectsMax bounds the refusals that wait to be recorded. If recording fails while more than
	// rejectsMax wait, the session ends.
	rejectsMax = 10_000
	// rejectsPerTick bounds the catalog commands between two ticks, because all partitions share
	// the catalog.
	rejectsPerTick = 10
	// rejectsTimeout bounds one attempt to record, because the reader waits during it.
	rejectsTimeout = time.Second
)

// rejects has the refusals that are not recorded yet. It outlives a session. Below the session's
// position no further refusal can appear, because no op is refused after its message was passed. So
// the runner records only refusals below that position, in order, and each of them once.
type rejects struct {
	waiting  []sink.Refusal
	ids      map[string]bool // letter IDs of the refusals in waiting, because a repeated batch may refuse an op a second time
	recorded int             // attempts since the last tick
}

// reject counts refusals and adds them to waiting.
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

// recordRejects records the refusals of messages below a position. It returns an error only if
// more than rejectsMax refusals wait.
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
			clear(r.rejects.ids) // drop the IDs of recorded refusals only now, when no refusal waits
		}
		return nil
	case len(r.rejects.waiting) > rejectsMax:
		return fmt.Errorf("cannot record what was rejected: %w", err)
	}
	r.rejects.recorded = rejectsPerTick // retry only after the next tick
	r.cfg.Logger.Debug("what was rejected is not recorded yet", "source", r.cfg.Source.Name, "partition", r.cfg.Partition, "err", err)
	return nil
}
