package members

import (
	"errors"
	"fmt"
	"maps"

	"github.com/cockroachdb/pebble/v2"
)

// Commit writes the entry's changes to the store, and returns the state after the entry. If it
// fails, the process must end: the state machine has already applied the entry to the counts.
func (b *Batch) Commit() (State, error) {
	if b.replayed {
		return b.outcome.after, nil
	}
	done, err := b.group.store.use()
	if err != nil {
		return State{}, err
	}
	defer done()
	b.group.stepping.Lock() // no step of a Parting until the changes are on disk
	defer b.group.stepping.Unlock()
	w := write{Batch: b, to: b.group.store.db.NewBatch(), at: b.group.at, after: b.before}
	defer w.to.Close()
	if err = w.fill(); err == nil && (!w.to.Empty() || len(b.outcome.judged) > 0) {
		err = w.commit()
	}
	if err != nil {
		return State{}, fmt.Errorf("cannot write members: %w", err)
	}
	return w.after, nil
}

// write is the state of a running Commit.
type write struct {
	*Batch
	to    *pebble.Batch
	at    prefix
	after State
	died  map[uint64]Stamp // deleted rows to mark
	gone  []uint64         // deleted rows whose marks to remove
}

func (w *write) fill() (err error) {
	if w.cleared {
		err = w.clear()
	}
	for p, at := range w.pairs {
		err = errors.Join(err, w.pair(p, at))
	}
	if w.cleared {
		return err
	}
	for row, d := range w.rows {
		if d.to > 0 {
			err = errors.Join(err, w.row(row, d))
		}
	}
	if w.purges {
		err = errors.Join(err, w.purge())
	}
	return err
}

func (w *write) clear() error {
	w.after.Digest, w.after.Pairs = 0, 0
	return errors.Join(w.at.removePairs(w.to), w.group.endParting(w.to))
}

// pair adds the changes of one pair on disk to the batch.
func (w *write) pair(p Pair, at *pair) error {
	is := at.is
	if is <= w.deadTo(p.Row) {
		is = 0
	}
	if is == at.was {
		return nil
	}
	if at.was != 0 {
		if err := w.remove(placement{p, at.was}); err != nil || is == 0 {
			return err
		}
	}
	added := placement{p, is}
	w.after.Add(p, is)
	return errors.Join(w.at.putPair(w.to, added), w.group.parting.put(w.to, added))
}

// remove removes a pair.
func (w *write) remove(p placement) error {
	w.after.remove(p)
	return errors.Join(w.at.removePair(w.to, p), w.group.parting.remove(w.to, p))
}

// removeAll removes pairs. It skips pairs that the entry itself touches: the method pair handles
// those.
func (w *write) removeAll(all []placement) (err error) {
	for _, p := range all {
		if w.pairs[p.Pair] == nil {
			err = errors.Join(err, w.remove(p))
		}
	}
	return err
}

// row removes the first pairs of a row that the entry deletes. If the row has more pairs, it marks
// the row as deleted.
func (w *write) row(row uint64, d *deletedRow) error {
	err := w.removeAll(d.first)
	if !d.more {
		if _, marked := w.group.dead[row]; marked {
			err = errors.Join(err, w.unmark(row))
		}
		return err
	}
	if w.died == nil {
		w.died = map[uint64]Stamp{}
	}
	w.died[row] = d.to
	return errors.Join(err, w.to.Set(full(w.at.number(keyDead, row)), appendStamp(nil, d.to), nil))
}

func (w *write) unmark(row uint64) error {
	w.gone = append(w.gone, row)
	return w.to.Delete(full(w.at.number(keyDead, row)), nil)
}

func (w *write) deletes(row uint64) bool { return w.rows[row] != nil && w.rows[row].to > 0 }

// purge removes pairs of rows that earlier entries deleted. It skips a row that this entry deletes again:
// the method row removes the pairs of that row.
func (w *write) purge() (err error) {
	for _, p := range w.dead.first {
		if !w.deletes(p.Row) && w.pairs[p.Pair] == nil {
			err = errors.Join(err, w.remove(p))
		}
	}
	for _, row := range w.dead.rows {
		if !w.deletes(row) {
			err = errors.Join(err, w.unmark(row))
		}
	}
	return err
}

func (w *write) commit() error {
	w.after.Index, w.after.Stamp = w.index, w.stamp
	w.outcome.previous, w.outcome.after = w.before.Index, w.after
	g := w.group
	g.reading.RLock()
	broken, state := g.broken, g.stateOnDisk(w.after)
	g.reading.RUnlock()
	if broken != nil {
		return nil // Discard gave the group up after Begin; the next Begin fails
	}
	err := errors.Join(
		w.to.Set(full(g.log.number(keyOutcome, w.index)), w.outcome.appendTo(nil), nil),
		state.set(w.to, g.number),
	)
	if len(w.died) > 0 { // before the batch, so that no reader finds only some of a row's pairs
		g.reading.Lock()
		maps.Copy(g.dead, w.died)
		g.reading.Unlock()
	}
	if err == nil {
		err = w.commitBatch()
	}
	if err != nil {
		return err
	}
	g.setState(w.after)
	if w.cleared || len(w.gone) > 0 { // after the batch, for the same reason
		g.reading.Lock()
		defer g.reading.Unlock()
	}
	if w.cleared {
		clear(g.dead)
	}
	for _, row := range w.gone {
		delete(g.dead, row)
	}
	return nil
}

// commitBatch adds the pairs of the batch to the filters of the group, and then commits the batch.
func (w *write) commitBatch() error {
	k := &w.group.known
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now.Load() == nil && k.filling == nil && w.before.Pairs == 0 && !k.closed {
		if k.setLocked(w.group.store.newFilter(0)); k.now.Load() == nil {
			w.group.wantFilter() // gets a filter once there is memory for it
		}
	}
	for p, at := range w.pairs {
		if at.is != 0 && at.is != at.was {
			k.addLocked(p)
		}
	}
	if f := k.now.Load(); f != nil && f.full() && k.filling == nil && !k.damaged {
		w.group.wantFilter()
	}
	return w.to.Commit(pebble.NoSync)
}
