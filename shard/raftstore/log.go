// Package raftstore owns a node's log: the entries, terms and votes of all its replicas, in one
// sequence of files. One goroutine at a time writes all waiting changes, and makes them durable
// with one sync.
//
// It knows nothing of the meaning of entries, of other nodes, or of snapshots. It never repairs
// damage: it returns ErrDamaged for bytes that differ from those written.
//
// Invariant: once a call has returned nil, its data is on disk and survives a crash at any moment.
// After a failed write or sync the log accepts nothing more, because it is unknown which part of
// that write is on disk. Only ErrNoSegment leaves the log usable.
package raftstore

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var (
	// ErrClosed is returned for a write to a closed log.
	ErrClosed = errors.New("the log is closed")
	// ErrGap is returned for entries that do not follow the last stored entry, and for a deletion
	// that would leave a gap.
	ErrGap = errors.New("the entries would have a gap")
	// ErrNoSegment is returned if the log needs a new file but the disk is full or no file
	// descriptor is free. Nothing was written, and the caller may retry. As an exception,
	// Replica.StoreLogs may have stored the first entries of the call.
	ErrNoSegment = errors.New("the log cannot begin its next file")
)

// NoSegment returns an error that matches ErrNoSegment and wraps only cause, a transient error. If
// it wrapped ErrNoSegment too, scarce.Is would return false for it.
func NoSegment(cause error) error { return noSegmentError{cause} }

type noSegmentError struct{ why error }

func (e noSegmentError) Error() string        { return ErrNoSegment.Error() + ": " + e.why.Error() }
func (e noSegmentError) Is(target error) bool { return target == ErrNoSegment }
func (e noSegmentError) Unwrap() error        { return e.why }

const (
	// SegmentBytesDefault is the size of a segment. Beginning a segment costs two syncs and a list
	// of all replicas, which is little compared with 16 MiB of entries.
	SegmentBytesDefault = 16 << 20
	segmentBytesMin     = 16 << 10

	// segmentBytesFirst bounds the size of the first segment. Each later segment is twice as large
	// as the one before, up to the full size, so that a node that stores little uses little disk.
	segmentBytesFirst = 1 << 20

	// batchBytesMax bounds a batch, and so how long other writes wait for the batch. A larger entry
	// is a batch of its own.
	batchBytesMax = 4 << 20
)

// Options configures Open.
type Options struct {
	FS           vfs.FS // nil for vfs.Default
	SegmentBytes int    // 0 for SegmentBytesDefault
}

// Log is the log of one node. Open starts its goroutines run and runCleaner; each new segment
// starts prepare. Close stops them and waits for them.
type Log struct {
	fs      vfs.FS
	dir     string
	sectors int // number of sectors of a full segment; rotate makes a larger one if a batch needs it
	lock    io.Closer

	mu struct {
		// The writer holds this lock while it adds a durable batch to the index. Nobody holds the
		// lock during a read or write of a file.
		sync.RWMutex
		*index
		active uint32 // the segment being written
	}

	queue struct {
		sync.Mutex
		changed *sync.Cond
		moves   []*request // these precede the waiting requests in a batch, see takeLocked
		waiting []*request
		busy    bool // a goroutine is writing or about to write
		closing bool
		// expected is the number of entries announced by Expect that have not arrived. It is only a
		// hint and may be wrong. The next batch resets it.
		expected int
		err      error // the first failure; the log writes nothing after it
	}

	// Only the goroutine that set queue.busy uses the fields from writing to taken; see
	// writeLocked.
	writing *segment // the segment mu.active
	framer  framer
	batch   []*request
	taken   map[ReplicaID]struct{}

	yieldMax time.Duration // yieldMaxDefault except in tests

	next   chan prepared // capacity 1: the prepared segment that follows the segment in the field writing
	spares chan *segment // capacity sparesMax: files of removed segments, for later segments
	wake   chan struct{} // capacity 1: a token wakes the cleaner
	stop   chan struct{} // ends the cleaner
	wg     sync.WaitGroup
	closed sync.Once
}

// Open opens the log in dir, or creates one if dir has none. It reads and checks the whole log. If
// the log is damaged, Open returns ErrDamaged and does not change it.
func Open(dir string, opts Options) (*Log, error) {
	l, err := open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("cannot open log %s: %w", dir, err)
	}
	return l, nil
}

func open(dir string, opts Options) (*Log, error) {
	l := &Log{
		fs: opts.FS, dir: dir, yieldMax: yieldMaxDefault, taken: map[ReplicaID]struct{}{}, next: make(chan prepared, 1),
		spares: make(chan *segment, sparesMax), wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	l.mu.index = newIndex()
	l.queue.changed = sync.NewCond(&l.queue.Mutex)
	if l.fs == nil {
		l.fs = vfs.Default
	}
	size := opts.SegmentBytes
	if size == 0 {
		size = SegmentBytesDefault
	}
	l.sectors = max(size, segmentBytesMin) / sectorBytes
	if err := l.fs.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	if err := errors.Join(l.syncDir(l.fs.PathDir(dir)), l.syncDir(dir)); err != nil {
		return nil, err
	}
	var err error
	if l.lock, err = l.fs.Lock(l.fs.PathJoin(dir, "LOCK")); err != nil {
		return nil, fmt.Errorf("another process has it open: %w", err)
	}
	if err := l.recover(); err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	l.startPrepare(l.writing.number + 1)
	l.wg.Go(l.run)
	l.wg.Go(l.runCleaner)
	l.wakeCleaner()
	return l, nil
}

// syncDir makes the file names in a directory durable.
func (l *Log) syncDir(dir string) error {
	d, err := l.fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Close writes the waiting requests and closes the log. The caller must not read the log after
// Close.
func (l *Log) Close() (err error) {
	l.closed.Do(func() {
		close(l.stop)
		l.queue.Lock()
		l.queue.closing = true
		l.queue.changed.Broadcast()
		l.queue.Unlock()
		l.wg.Wait()
		err = l.closeFiles()
	})
	return err
}

func (l *Log) closeFiles() error {
	var errs []error
	for _, s := range l.mu.segments {
		errs = append(errs, s.file.Close())
	}
	select {
	case p := <-l.next:
		if p.segment != nil {
			errs = append(errs, p.segment.file.Close())
		}
	default:
	}
	close(l.spares)
	for s := range l.spares {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(append(errs, l.lock.Close())...)
}

// Has reports whether the log has a replica.
func (l *Log) Has(id ReplicaID) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.replicas[id] != nil
}

// Replicas returns the replicas in the log, by group and number.
func (l *Log) Replicas() []ReplicaID {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.ids()
}

// Usage is the disk space of a log.
type Usage struct {
	Bytes     int64 // size of all segments, with prepared ones and spare files
	LiveBytes int64 // size of live entries, approximately
	Segments  int
}

// Usage returns the current disk space of the log.
func (l *Log) Usage() Usage {
	l.mu.RLock()
	defer l.mu.RUnlock()
	u := Usage{Segments: len(l.mu.segments)}
	for _, s := range l.mu.segments {
		u.Bytes += int64(s.sectors) * sectorBytes
		u.LiveBytes += s.liveBytes()
	}
	u.Bytes += int64(len(l.next)*l.sectorsOf(l.mu.active+1)+len(l.spares)*l.sectors) * sectorBytes
	return u
}

// liveBytes estimates the bytes of a segment's live entries.
func (s *segment) liveBytes() int64 {
	if s.entries == 0 {
		return 0
	}
	return int64(s.end) * sectorBytes * int64(s.live) / int64(s.entries)
}
