package members

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// A view is sent in blocks. Each block contains items of one kind:
//
//	'd' | row (8) | stamp (6) …                             deleted rows that still have pairs, ascending
//	'p' | row (8) | column (1) | member (8) | stamp (6) …   pairs, ascending by row, column, member
//	'o' | index (8) | length (4) | outcome …                outcomes, ascending by index
const (
	blockPairs    = 'p'
	blockDead     = 'd'
	blockOutcomes = 'o'

	pairBytes = 8 + 1 + 8 + stampBytes
	deadBytes = 8 + stampBytes

	pairsInBlock = 4096
	// blockBytesMax bounds the blocks of deleted rows and of outcomes. An outcome has one bit for each op of
	// an entry.
	blockBytesMax = 128 << 10
)

// ErrMovedOn is returned for a snapshot that later snapshots have replaced, if the group no longer
// has its sets. Nothing is damaged: the newest snapshot can be read.
var ErrMovedOn = errors.New("later snapshots have replaced this one, and its sets are not kept")

// viewsKept is the number of captured views that a group keeps until ReleaseViews. One is of the
// snapshot that its replica stores, and one of the snapshot that the replica is writing.
//
// OpenView returns the sets that a snapshot names in one of these ways:
//
//   - It returns the sets as of the snapshot's entry if the group has kept the view that was
//     captured then. The group drops the view once viewsKept later views are captured, ReleaseViews
//     releases it, or a damaged file is removed. To prevent the first two, a caller calls HoldViews
//     before it takes the snapshot, and lets nobody take another snapshot until OpenView returns.
//   - Without that view, it returns the sets as of a later entry, and the outcomes since the
//     snapshot. The outcomes exist while the replica stores this snapshot or an older one, because
//     Trim removes no outcome after the oldest stored snapshot. If the group has split since the
//     snapshot, that later entry is the last one before the Split: Trim keeps these sets too.
//   - Without the outcomes, it returns ErrMovedOn.
//
// An open ViewReader can be read to its end, whatever is captured, released, trimmed, loaded or
// removed meanwhile. It has already read the deleted rows and the outcomes, and its iterator keeps
// the pairs and their files.
const viewsKept = 2

// View is the sets of a group as they were at one moment.
type View struct {
	group *Group
	state State
	log   prefix // as in Group
	at    prefix // as in Group
	split uint64 // as in groupState
	refs  int    // guarded by Group.mu
	disk  *pebble.Snapshot
	since time.Time
}

// Capture makes a view of the present sets, and keeps it for OpenView.
func (g *Group) Capture() error {
	done, err := g.store.use()
	if err != nil {
		return err
	}
	defer done()
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.mu.views); g.state.Index == 0 || n > 0 && g.mu.views[n-1].state == g.state && g.mu.views[n-1].at == g.at {
		return nil
	}
	v, err := g.openLocked()
	if err != nil {
		return err
	}
	g.mu.views = append(g.mu.views, v)
	if len(g.mu.views) > viewsKept {
		g.mu.views[0].releaseLocked()
		g.mu.views = slices.Delete(g.mu.views, 0, 1)
	}
	return nil
}

// openLocked returns a view of the present sets with one reference. The caller must have called Use
// and hold Store.writes.
func (g *Group) openLocked() (v *View, err error) {
	if v, err = g.store.view(g.number); err == nil {
		v.group = g
	}
	return v, err
}

// view is like openLocked, but the view has no group, and is nobody else's.
func (s *Store) view(number uint32) (*View, error) {
	v := &View{refs: 1, disk: s.db.NewSnapshot(), since: time.Now()}
	found, err := readState(v.disk, number)
	if err != nil {
		return nil, errors.Join(err, v.disk.Close())
	}
	v.log, v.at, v.state, v.split = found.log(number), found.pairs(number), found.state, found.split
	return v, nil
}

// releaseLocked releases a reference. The caller must have called Use.
func (v *View) releaseLocked() {
	if v.refs--; v.refs == 0 {
		_ = v.disk.Close() // Close fails only if called twice
	}
}

// HoldViews makes ReleaseViews do nothing until the caller calls release, exactly once. Without it,
// ReleaseViews may release the view of a new snapshot too early: if the sets have not changed since
// the last Capture, the new snapshot uses the old view with its old time. Capture still drops the
// oldest view, so a group never keeps more than viewsKept.
func (g *Group) HoldViews() (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.held++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.mu.held--
	}
}

// ReleaseViews releases the views that were captured before the given time. It does nothing while
// somebody holds the views with HoldViews. While a view exists, all data that any group of the
// store removes stays on disk. Once the view of a snapshot is released, OpenView returns the sets as
// of a later entry, together with the outcomes of all ops since the snapshot. If these outcomes are
// gone too, it returns ErrMovedOn (see viewsKept).
func (g *Group) ReleaseViews(before time.Time) {
	done, err := g.store.db.Use()
	if err != nil {
		return // Close has released them
	}
	defer done()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.held > 0 {
		return
	}
	g.releaseLocked(func(v *View) bool { return v.since.Before(before) })
}

// releaseLocked releases each captured view v if which(v) is true. The caller must have called Use.
func (g *Group) releaseLocked(which func(*View) bool) {
	g.mu.views = slices.DeleteFunc(g.mu.views, func(v *View) bool {
		released := which(v)
		if released {
			v.releaseLocked()
		}
		return released
	})
}

// Close releases the group's views and filters, and ends its Parting. The replica must have stopped. Further calls do
// nothing.
func (g *Group) Close() {
	_ = g.step(func(batch *pebble.Batch) error {
		g.closed = true
		return g.endParting(batch)
	})
	done, err := g.store.db.Use()
	if err != nil {
		return // the store must not be closed before its groups
	}
	defer done()
	g.known.mu.Lock()
	first := !g.known.closed
	if first {
		g.store.pairs.Add(-int64(g.state.Pairs))
		g.known.closed = true
		g.known.forgetLocked()
	}
	g.known.mu.Unlock()
	if !first {
		return
	}
	g.store.retryFilters()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.releaseLocked(func(*View) bool { return true })
}

// OpenView returns the sets for a snapshot. named is the state in the snapshot. If the group keeps
// a view of that state, the sets are as of that state. If not, they are as of a later entry, with
// the outcomes since (see viewsKept). The caller must close the reader.
func (g *Group) OpenView(named State) (*ViewReader, error) {
	r, err := g.openView(named)
	if err != nil && r != nil {
		r.Close()
		return nil, err
	}
	return r, err
}

func (g *Group) openView(named State) (*ViewReader, error) {
	done, err := g.store.use() // no discard until the iterator is open
	if err != nil {
		return nil, err
	}
	defer done()
	g.mu.Lock()
	var v *View
	for _, kept := range g.mu.views {
		if kept.state == named {
			v = kept
			v.refs++
		}
	}
	if v == nil {
		if v, err = g.openLocked(); err == nil {
			if err = v.beforeSplits(named.Index); err != nil {
				v.releaseLocked()
			}
		}
	}
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	r := &ViewReader{view: v, left: v.state.Pairs}
	g.store.mu.Lock()
	g.store.mu.readers[r] = struct{}{}
	g.store.mu.Unlock()
	return r, r.open(named)
}

// ViewReader reads a view block by block.
type ViewReader struct {
	view  *View
	first [][]byte // blocks of deleted rows, which come before the pairs
	last  [][]byte // blocks of outcomes, which come after the pairs
	bytes int64    // size of all blocks

	left uint64 // number of pairs not read yet
	mu   struct {
		sync.Mutex // Close may run concurrently with Next
		closed     bool
		it         *pebble.Iterator
	}
}

func (r *ViewReader) open(named State) error {
	v := r.view
	dead, err := readDead(v.disk, v.at)
	if err != nil {
		return err
	}
	for _, row := range slices.Sorted(maps.Keys(dead)) {
		b := nextBlock(&r.first, blockDead, deadBytes)
		*b = appendStamp(binary.BigEndian.AppendUint64(*b, row), dead[row])
	}
	if err := r.outcomes(named); err != nil {
		return err
	}
	blocks := (v.state.Pairs + pairsInBlock - 1) / pairsInBlock
	r.bytes = int64(v.state.Pairs)*pairBytes + int64(blocks)
	for _, b := range slices.Concat(r.first, r.last) {
		r.bytes += int64(len(b))
	}
	if v.state.Pairs == 0 {
		return nil
	}
	prefix := v.at.kind(keyMember)
	r.mu.it, err = v.disk.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: scarce.PrefixEnd(prefix)})
	if err != nil {
		return damaged(err)
	}
	r.mu.it.First()
	return nil
}

// outcomes reads the outcomes of the entries after from.Index, up to the view's state. If Trim has
// removed the first ones, it returns ErrMovedOn. Trim never leaves a gap, so any other missing
// outcome is damage.
func (r *ViewReader) outcomes(from State) error {
	v, last, trimmed := r.view, from, false
	err := eachFrom(v.disk, v.log.number(keyOutcome, from.Index+1), v.log.number(keyOutcome, v.state.Index+1), func(key, value []byte) (bool, error) {
		o, err := parseOutcome(value)
		if trimmed = err == nil && last == from && o.previous > from.Index; err != nil || trimmed {
			return false, err
		}
		if o.previous != last.Index {
			return false, fmt.Errorf("%w: the outcome behind entry %d names entry %d", ErrDamaged, last.Index, o.previous)
		}
		last = o.after
		b := nextBlock(&r.last, blockOutcomes, 12+len(value))
		*b = append(*b, key[prefixBytes:prefixBytes+8]...)
		*b = append(binary.BigEndian.AppendUint32(*b, uint32(len(value))), value...)
		return true, nil
	})
	switch {
	case err != nil:
		return err
	case trimmed, last == from && from.Index < v.state.Index:
		return ErrMovedOn
	case last != v.state:
		return fmt.Errorf("%w: the outcomes lead to %+v, the sets are %+v", ErrDamaged, last, v.state)
	}
	return nil
}

// kept is what a Split has left: a part, or the sets before the Split if part is 0.
type kept struct {
	record
	at    prefix
	state State
}

// kept returns what Splits have left, in their order.
func (v *View) kept() (all []kept, err error) {
	if v.split == 0 {
		return nil, nil
	}
	records, err := readRecords(v.disk, v.log)
	for _, r := range records {
		o, found, failed := readOutcome(v.disk, v.log, r.split)
		states, _ := o.parts()
		if err = errors.Join(err, failed); err == nil && (!found || r.part >= len(states)) {
			err = fmt.Errorf("%w: part %d of the split at entry %d has no state", ErrDamaged, r.part, r.split)
		}
		if err != nil {
			return nil, err
		}
		k := kept{record: r, at: homeOr(r.home, v.log), state: states[r.part]}
		if r.part == 0 {
			k.state = o.before(states)
		}
		all = append(all, k)
	}
	return all, err
}

// beforeSplits makes the view one of the sets before the first Split after an index, if the group still has these
// sets. So a replica that loads them replays the Split, and splits them too.
func (v *View) beforeSplits(index uint64) error {
	if v.split <= index {
		return nil
	}
	all, err := v.kept()
	for _, k := range all {
		if k.part == 0 && k.split > index {
			v.at, v.state = k.at, k.state
			break
		}
	}
	return err
}

// nextBlock returns the last block of blocks. If that is of another kind or has no room for size
// more bytes, it first appends a new block of the given kind.
func nextBlock(blocks *[][]byte, kind byte, size int) *[]byte {
	if n := len(*blocks); n == 0 || (*blocks)[n-1][0] != kind || len((*blocks)[n-1])+size > blockBytesMax {
		*blocks = append(*blocks, []byte{kind})
	}
	return &(*blocks)[len(*blocks)-1]
}

// State returns the state of the view.
func (r *ViewReader) State() State { return r.view.state }

// Size returns the number of the view's blocks, and their bytes. Call it before Next.
func (r *ViewReader) Size() (blocks int, bytes int64) {
	return int((r.view.state.Pairs+pairsInBlock-1)/pairsInBlock) + len(r.first) + len(r.last), r.bytes
}

// Next appends the next block to dst. It returns io.EOF after the last.
func (r *ViewReader) Next(dst []byte) ([]byte, error) {
	done, err := r.view.group.store.db.Use()
	if err != nil {
		return dst, err
	}
	defer done()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.closed:
		return dst, scarce.ErrClosed
	case len(r.first) > 0:
		dst = append(dst, r.first[0]...)
		r.first = r.first[1:]
		return dst, nil
	case r.left > 0:
		return r.pairsLocked(dst)
	case r.mu.it != nil && r.mu.it.Valid():
		return dst, fmt.Errorf("%w: more pairs than the %d of the state", ErrDamaged, r.view.state.Pairs)
	case len(r.last) == 0:
		return dst, io.EOF
	}
	dst = append(dst, r.last[0]...)
	r.last = r.last[1:]
	return dst, nil
}

func (r *ViewReader) pairsLocked(dst []byte) ([]byte, error) {
	dst = append(dst, blockPairs)
	it := r.mu.it
	for range min(r.left, pairsInBlock) {
		if !it.Valid() {
			return dst, damaged(errors.Join(it.Error(), fmt.Errorf("%w: pairs are missing", ErrDamaged)))
		}
		p, at, err := parsePair(it.Key())
		if err != nil {
			return dst, err
		}
		dst = binary.BigEndian.AppendUint64(dst, p.Row)
		dst = binary.BigEndian.AppendUint64(append(dst, p.Column), p.Member)
		dst = appendStamp(dst, at)
		it.Next()
	}
	r.left -= min(r.left, pairsInBlock)
	return dst, nil
}

// Close releases the view. Further calls do nothing.
func (r *ViewReader) Close() {
	done, err := r.view.group.store.db.Use()
	if err != nil {
		return // Store.Close has closed the reader
	}
	defer done()
	r.close()
}

// close is like Close, but the caller must have called Use or be closing the store.
func (r *ViewReader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return
	}
	r.mu.closed = true
	s := r.view.group.store
	s.mu.Lock()
	delete(s.mu.readers, r)
	s.mu.Unlock()
	if r.mu.it != nil {
		_ = r.mu.it.Close() // Next has returned any error
	}
	r.view.group.mu.Lock()
	defer r.view.group.mu.Unlock()
	r.view.releaseLocked()
}

// EachDead calls fn with each deleted row of a block. A pair of the row is deleted if its stamp is
// at most to, even if a later block contains the pair. For a block of another kind it does not call
// fn.
func EachDead(block []byte, fn func(row uint64, to Stamp)) error {
	if len(block) == 0 || block[0] != blockDead {
		return nil
	}
	for block = block[1:]; len(block) >= deadBytes; block = block[deadBytes:] {
		fn(binary.BigEndian.Uint64(block), stampAt(block[8:]))
	}
	if len(block) > 0 {
		return fmt.Errorf("%w: %d bytes behind deleted rows", ErrDamaged, len(block))
	}
	return nil
}

// EachPair calls fn with each pair of a block. For a block of another kind it does not call fn.
func EachPair(block []byte, fn func(p Pair, at Stamp) error) error {
	if len(block) == 0 || block[0] != blockPairs {
		return nil
	}
	block = block[1:]
	if len(block)%pairBytes != 0 {
		return fmt.Errorf("%w: a block of %d bytes", ErrDamaged, len(block)+1)
	}
	for ; len(block) > 0; block = block[pairBytes:] {
		p := Pair{Row: binary.BigEndian.Uint64(block), Column: block[8], Member: binary.BigEndian.Uint64(block[9:])}
		at := stampAt(block[17:])
		if at == 0 {
			return fmt.Errorf("%w: a pair without a stamp", ErrDamaged)
		}
		if err := fn(p, at); err != nil {
			return err
		}
	}
	return nil
}
