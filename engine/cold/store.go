package cold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/singleflight"

	"github.com/countd/countd/internal/lograte"
	"github.com/countd/countd/internal/scarce"
)

// Config configures Open.
type Config struct {
	Dir        string // used by the store alone
	CacheBytes uint64 // bound of the cache of blocks; 0 for CacheBytesDefault
	Logger     *slog.Logger
	// Fatal is called if the disk refuses a write that the store cannot do without. It
	// should end the process.
	Fatal func(error)
	// FS is the file system; nil for the operating system's.
	FS vfs.FS
}

const (
	// CacheBytesDefault holds some 8,000 blocks, so 5 million rows.
	CacheBytesDefault = 32 << 20

	// readersMax bounds concurrent block reads for waiting callers: enough to keep a
	// solid-state disk busy, few enough to leave the processors to reads from memory.
	readersMax = 16
	// waitingMax bounds the reads that wait for a turn. Further reads are refused.
	waitingMax = 4096

	// Pebble's own memory besides its indexes. A batch of generations is larger than half
	// of the memtable, so Pebble writes it directly to a file.
	pebbleMemtableBytes = 128 << 10

	// removedWithin bounds the time until the space of removed generations is free.
	// Without it, the space would be free only once a memtable is full of removals.
	removedWithin = 10 * time.Second
)

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the store of cold rows is closed")

// ErrBusy is returned for a read when too many wait already.
var ErrBusy = errors.New("too many reads of cold rows are waiting")

// Store owns the cold rows of all shards of a node, in one Pebble. Its methods are safe
// for concurrent use.
type Store struct {
	cfg   Config
	db    *pebble.DB
	cache *otter.Cache[blockKey, []byte]
	index *indexCache

	// gate is held for reading while Pebble is in use and for writing to close it. It is
	// acquired before all other locks of the store, so a caller that waits for it behind
	// Close holds none.
	gate    sync.RWMutex
	closed  bool
	closing chan struct{} // closed when Close begins
	once    sync.Once
	opened  atomic.Bool // set once Open is done

	flights singleflight.Group // one read of a block for all concurrent callers
	readers chan struct{}      // one token per read under way
	waiting atomic.Int64
	stats   storeStats
	sets    atomic.Uint32 // how many Records were opened
	limit   lograte.Limiter

	mu struct {
		sync.Mutex
		groups map[uint32]*Group
		// next is the number of the next generation: above all that groups have on disk
		// or that their snapshots name. It never falls while the store is open, so a
		// number is never reused, not even by a group that was dropped and created again.
		next uint64
	}
}

type storeStats struct {
	hits, misses, refused, damaged atomic.Uint64
	readNanos                      atomic.Uint64
	reads                          latencies
	records, recordNanos           atomic.Uint64
}

// Stats counts the reads of blocks since the store was opened.
type Stats struct {
	Hits, Misses uint64  // found in the cache, read from disk
	Refused      uint64  // with ErrBusy
	Damaged      uint64  // with ErrDamaged, for rows that should exist
	ReadSeconds  float64 // spent in Misses
	// Reads are the reads of blocks that were not in the cache. Each lasts as long as its
	// caller waited, for a turn and for the disk.
	Reads      Latencies
	CacheBytes uint64

	RecordReads   uint64  // reads of single records
	RecordSeconds float64 // spent in them
}

// blockKey names a block by group, generation and number.
type blockKey struct {
	group      uint32
	generation uint64
	block      uint32
}

func (k blockKey) String() string {
	return fmt.Sprintf("block %d of generation %d of group %d", k.block, k.generation, k.group)
}

// Keys of Pebble, integers big-endian:
//
//	'b' | group (4) | generation (8) | block (4)     a block
//	'g' | group (4) | generation (8)                 what a generation has: see generation.go
//	'p' | group (4) | name of a snapshot             the generations that it names (8 each), see pins.go
//	'r' | group (4) | set (4) | key (8)              a record, see records.go
const (
	keyBlock      = 'b'
	keyGeneration = 'g'
	keyPin        = 'p'
)

func (k blockKey) encode() []byte {
	b := generationKey(keyBlock, k.group, k.generation)
	return binary.BigEndian.AppendUint32(b, k.block)
}

func groupKey(kind byte, group uint32) []byte {
	return binary.BigEndian.AppendUint32(append(make([]byte, 0, 17), kind), group)
}

func generationKey(kind byte, group uint32, generation uint64) []byte {
	return binary.BigEndian.AppendUint64(groupKey(kind, group), generation)
}

// Open opens the store, and creates it if it does not exist.
func Open(cfg Config) (*Store, error) {
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = CacheBytesDefault
	}
	if cfg.FS == nil {
		cfg.FS = vfs.Default
	}
	cache, err := otter.New(&otter.Options[blockKey, []byte]{
		MaximumWeight: cfg.CacheBytes,
		Weigher:       func(_ blockKey, b []byte) uint32 { return uint32(cap(b)) + blockOverhead },
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make the cache of cold rows: %w", err)
	}
	s := &Store{cfg: cfg, cache: cache, index: newIndexCache(), readers: make(chan struct{}, readersMax), closing: make(chan struct{})}
	s.mu.groups = map[uint32]*Group{}
	if s.db, err = pebble.Open(cfg.Dir, s.options()); err != nil {
		s.index.close()
		return nil, fmt.Errorf("cannot open cold rows in %s: %w", cfg.Dir, err)
	}
	if err := s.removeRecords(); err != nil {
		defer s.index.close()
		return nil, errors.Join(err, s.db.Close())
	}
	s.index.fit(s.filesBytes())
	s.opened.Store(true)
	return s, nil
}

// blockOverhead is about what the cache takes for a block besides its bytes.
const blockOverhead = 200

func (s *Store) options() *pebble.Options {
	waiting := scarce.Wait{Dir: s.cfg.Dir, What: "cold rows", Logger: s.cfg.Logger, Started: &s.opened, Closing: s.closing}
	o := &pebble.Options{
		FS: waiting.Over(s.cfg.FS), Logger: pebbleLogger{s},
		FormatMajorVersion: pebble.FormatNewest,
		Cache:              s.index.pebble, MemTableSize: pebbleMemtableBytes, MaxOpenFiles: scarce.TableFiles(),
		FlushDelayDeleteRange: removedWithin,
	}
	o.EventListener = &pebble.EventListener{
		// By default Pebble ends the process when a file is damaged. Readers of the file
		// get an error, which is enough.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			s.tellDamage(info.Path, info.Details)
		},
		// By default Pebble retries a failed flush without end or pause.
		FlushEnd: func(info pebble.FlushInfo) {
			var file *fs.PathError
			if errors.As(info.Err, &file) && !scarce.Is(info.Err) {
				s.cfg.Fatal(fmt.Errorf("cannot write cold rows in %s: %w", s.cfg.Dir, info.Err))
			}
		},
	}
	// Blocks are packed already: compression would take time and gain nothing.
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	return o
}

// limited returns a logger for messages that many readers or writers would repeat.
func (s *Store) limited() *slog.Logger { return s.limit.Logger(s.cfg.Logger) }

// tellDamage logs that a Pebble file is damaged. It logs err.Error() because other
// formats of Pebble's errors include a stack.
func (s *Store) tellDamage(file string, err error) {
	s.limited().Error("cold rows are damaged on disk", "file", file, "err", err.Error())
}

// Close closes the store. Later calls of other methods get ErrClosed.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.closing) })
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	defer s.index.close()
	switch err := s.db.Close(); {
	case scarce.NoRoom(err):
		// Pebble ends its log with a trailer. Whatever must be on disk was synced before.
		s.cfg.Logger.Warn("the disk is full: the log of cold rows is closed as after a crash", "dir", s.cfg.Dir, "err", err)
	case err != nil:
		return fmt.Errorf("cannot close cold rows: %w", err)
	}
	return nil
}

// use keeps the store open until the caller calls done.
func (s *Store) use() (done func(), err error) {
	s.gate.RLock()
	if s.closed {
		s.gate.RUnlock()
		return nil, ErrClosed
	}
	return s.gate.RUnlock, nil
}

// commit writes a batch. The caller has the store in use.
func (s *Store) commit(batch *pebble.Batch, sync *pebble.WriteOptions) error {
	bytes := batch.Len() // before Commit, which may take over the batch's memory
	if err := batch.Commit(sync); err != nil {
		return err
	}
	s.index.wrote(bytes, s.filesBytes)
	return nil
}

// DiskBytes returns the size of the store's files, 0 after Close.
func (s *Store) DiskBytes() uint64 {
	done, err := s.use()
	if err != nil {
		return 0
	}
	defer done()
	return s.filesBytes()
}

// filesBytes is DiskBytes for a caller that holds use. It makes Pebble read all its file
// metadata.
func (s *Store) filesBytes() uint64 { return s.db.Metrics().DiskSpaceUsage() }

// Stats returns the counts of reads so far.
func (s *Store) Stats() Stats {
	return Stats{
		Hits: s.stats.hits.Load(), Misses: s.stats.misses.Load(), Refused: s.stats.refused.Load(),
		Damaged: s.stats.damaged.Load(), ReadSeconds: float64(s.stats.readNanos.Load()) / 1e9, Reads: s.stats.reads.load(),
		CacheBytes:  s.cache.WeightedSize(),
		RecordReads: s.stats.records.Load(), RecordSeconds: float64(s.stats.recordNanos.Load()) / 1e9,
	}
}

// pebbleLogger forwards Pebble's messages. Fatalf must not return to Pebble, so it ends
// the goroutine after Fatal.
type pebbleLogger struct{ store *Store }

func (l pebbleLogger) Infof(format string, args ...any) {
	l.store.cfg.Logger.Debug("pebble: " + fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	for i, arg := range args {
		if err, is := arg.(error); is { // its other formats include a stack
			args[i] = err.Error()
		}
	}
	l.store.limited().Warn("pebble: " + fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.store.cfg.Fatal(fmt.Errorf("cannot write cold rows in %s: %s", l.store.cfg.Dir, fmt.Sprintf(format, args...)))
	runtime.Goexit()
}
