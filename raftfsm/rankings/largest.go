package rankings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

const (
	// LimitMax bounds the rows of an answer.
	LimitMax = 1000
	// candidatesKept is the number of candidates that a list keeps when it drops some. All but
	// LimitMax of them may fall behind the place before the list must scan the table again.
	candidatesKept = 1500
	// If a list has more than candidatesMax candidates, it drops some.
	candidatesMax = 2 * candidatesKept
)

// LargestLists are the lists of the largest counts of one table, by column. They are exact, but
// each needs a scan of all rows.
//
// A list has candidates: all rows whose count in a column is before a place (see engine.Place), and
// perhaps some others. A query reads the counts of the candidates. The first query of a column
// scans the table once, in a goroutine of its own, which takes at most half a core. From then on,
// the table reports each row that rises to before the place. So the list needs no other scan while
// enough candidates are before the place. If too few are, the next query scans again.
//
// No row is missed, because the list moves its place first and reads counts afterwards. A row that
// was before the place when the scan read it is a candidate. If a row rises to before the place
// later, the table reports the row, whether or not the scan has read it. The list drops a candidate
// only if its count, read after the place has moved, is not before the place.
//
// The lists are in memory, differ between replicas, and end with their table. They never change a row.
//
// Invariant: each row before the place of a list is a candidate of the list, or its rise is still
// in table.Rises.
type LargestLists struct {
	table *engine.Table
	scans sync.WaitGroup

	mu struct {
		sync.Mutex
		closed  bool
		columns [engine.ColumnsMax]*list
	}
}

// list is the list of one column.
type list struct {
	column uint8
	read   atomic.Uint64 // rows that the scan has read
	done   chan struct{} // closed when the scan has ended
	err    error         // the error of the scan; read it only after done is closed

	// LargestLists.mu guards these.
	place engine.Place     // all rows before this place are candidates
	known map[uint64]int64 // the candidates, each with a count that it had at some time
	risen map[uint64]bool  // candidates that rose while trim was reading counts; nil while trim does not run
}

// NewLargestLists returns the lists of a table.
func NewLargestLists(table *engine.Table) *LargestLists { return &LargestLists{table: table} }

// Close ends the scans and waits for them.
func (l *LargestLists) Close() {
	l.mu.Lock()
	l.mu.closed = true
	l.mu.Unlock()
	l.scans.Wait()
}

// ScanningError is returned by Top if a scan did not end in time. Read is the number of rows that
// the scan has read so far.
type ScanningError struct{ Read uint64 }

func (e *ScanningError) Error() string {
	return fmt.Sprintf("the largest counts are being read: %d rows so far", e.Read)
}

// Top returns the largest counts of a column in order, without counts below 1. Each count is as of
// a moment during the call.
func (l *LargestLists) Top(column uint8, limit int, deadline time.Time) ([]engine.Place, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		of, scanned := l.list(column)
		if !scanned {
			select {
			case <-of.done:
				if of.err != nil && !errors.Is(of.err, errAgain) {
					return nil, of.err
				}
				continue
			case <-timer.C:
				return nil, &ScanningError{of.read.Load()}
			}
		}
		rows, enough, err := l.top(of, limit, deadline)
		if err != nil || enough {
			return rows, err
		}
	}
}

// list returns the list of a column, and whether its scan has succeeded. If there is no list, it
// makes one and starts the scan.
func (l *LargestLists) list(column uint8) (of *list, scanned bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeRisesLocked()
	if of = l.mu.columns[column]; of == nil {
		of = &list{column: column, done: make(chan struct{}), known: map[uint64]int64{}}
		if l.mu.closed {
			of.err = errClosed
			close(of.done)
			return of, false
		}
		l.mu.columns[column] = of
		l.scans.Go(func() { l.scan(of) })
	}
	return of, of.scanned()
}

// scanned reports whether the scan has succeeded.
func (of *list) scanned() bool {
	select {
	case <-of.done:
		return of.err == nil
	default:
		return false
	}
}

var (
	errClosed = errors.New("the table was replaced")
	// errAgain is the error of a scan during which the table has forgotten rises.
	errAgain = errors.New("the scan must begin again")
)

// takeRisesLocked adds the rows that have risen to the candidates. If the table has forgotten
// rises, it drops all lists.
func (l *LargestLists) takeRisesLocked() {
	rises, whole := l.table.Rises.Take(nil)
	if !whole {
		clear(l.mu.columns[:])
		return
	}
	for _, r := range rises {
		if of := l.mu.columns[r.Column]; of != nil {
			of.known[r.ID] = of.place.Count
			if of.risen != nil {
				of.risen[r.ID] = true
			}
		}
	}
}

// top reads the counts of the candidates. If the list was trimmed, and too few candidates are
// before its place, enough is false, and the list is dropped.
func (l *LargestLists) top(of *list, limit int, deadline time.Time) (rows []engine.Place, enough bool, err error) {
	l.mu.Lock()
	place, ids := of.place, make([]uint64, 0, len(of.known))
	for id := range of.known {
		ids = append(ids, id)
	}
	l.mu.Unlock()
	rows, err = l.counts(of.column, ids, deadline)
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(rows, engine.Place.Compare)
	n := 0
	for n < len(rows) && rows[n].Before(place) {
		n++
	}
	if n < limit && place != (engine.Place{}) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.mu.columns[of.column] == of {
			l.mu.columns[of.column] = nil
		}
		return nil, false, nil
	}
	if len(rows) > candidatesMax {
		l.mu.Lock()
		for _, r := range rows {
			of.known[r.ID] = r.Count
		}
		l.mu.Unlock()
		err = l.trim(of, deadline)
	}
	return rows[:min(n, limit)], true, err
}

// counts reads the counts of rows in one column, from memory and disk.
func (l *LargestLists) counts(column uint8, ids []uint64, deadline time.Time) ([]engine.Place, error) {
	width := int(column) + 1
	rows, words := make([]engine.Place, len(ids)), make([]int64, len(ids)*width)
	missing := l.table.GetMany(ids, width, words, nil)
	err := raftfsm.EachRead(len(missing), deadline, func(ctx context.Context, i int) error {
		at := missing[i]
		return l.table.ReadCold(ctx, ids[at], words[at*width:(at+1)*width])
	})
	for i, id := range ids {
		rows[i] = engine.Place{Count: words[i*width+int(column)], ID: id}
	}
	return rows, err
}

// trim moves the list's place so that about candidatesKept candidates are before the place. It
// drops the other candidates.
func (l *LargestLists) trim(of *list, deadline time.Time) error {
	l.mu.Lock()
	if of.risen != nil || len(of.known) <= candidatesKept {
		l.mu.Unlock()
		return nil
	}
	rows := make([]engine.Place, 0, len(of.known))
	for id, count := range of.known {
		rows = append(rows, engine.Place{Count: count, ID: id})
	}
	slices.SortFunc(rows, engine.Place.Compare)
	of.risen = map[uint64]bool{}
	if rows[candidatesKept].Before(of.place) { // the place only moves to larger counts, because rows behind it need not be candidates
		of.place = rows[candidatesKept]
		l.table.Rises.Watch(of.column, of.place) // watch before the counts below are read
	}
	var ids []uint64
	for _, r := range rows {
		if !r.Before(of.place) {
			ids = append(ids, r.ID)
		}
	}
	l.mu.Unlock()
	rows, err := l.counts(of.column, ids, deadline)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		if of.known[r.ID] = r.Count; err == nil && !r.Before(of.place) && !of.risen[r.ID] {
			delete(of.known, r.ID)
		}
	}
	of.risen = nil
	return err
}

// scan reads the whole table. After each page, it sleeps for as long as the page took.
func (l *LargestLists) scan(of *list) {
	defer close(of.done)
	l.table.Rises.Watch(of.column, engine.Place{}) // watch all counts above 0
	began, failed := time.Now(), error(nil)
	err := l.table.Scan(0, int(of.column)+1, func(page *engine.Page) bool {
		failed = l.scannedPage(of, page)
		time.Sleep(time.Since(began))
		began = time.Now()
		return failed == nil
	})
	if err == nil {
		err = failed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if of.err = err; err != nil && l.mu.columns[of.column] == of {
		l.mu.columns[of.column] = nil
	}
}

// scannedPage adds the rows of a page to the candidates.
func (l *LargestLists) scannedPage(of *list, page *engine.Page) error {
	of.read.Add(uint64(len(page.IDs)))
	l.mu.Lock()
	l.takeRisesLocked()
	if l.mu.closed || l.mu.columns[of.column] != of {
		defer l.mu.Unlock()
		if l.mu.closed {
			return errClosed
		}
		return errAgain
	}
	for i, id := range page.IDs {
		if count := page.Row(i)[of.column]; (engine.Place{Count: count, ID: id}).Before(of.place) {
			of.known[id] = count
		}
	}
	full := len(of.known) > candidatesMax
	l.mu.Unlock()
	if !full {
		return nil
	}
	return l.trim(of, time.Now().Add(raftfsm.DiskReadMax))
}
