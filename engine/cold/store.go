package cold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/singleflight"

	"github.com/countd/countd/internal/scarce"
)

// Config configures Open.
type Config struct {
	Dir        string // nobody else may use this directory
	CacheBytes uint64 // bound of the block cache; 0 means CacheBytesDefault
	Logger     *slog.Logger
	// Fatal is called if the disk refuses a write without which the store cannot continue. It should
	// end the process.
	Fatal func(error)
	// FS is the file system. nil means that of the operating system.
	FS vfs.FS
}

const (
	// CacheBytesDefault holds some 8,000 blocks, which have 5 million rows.
	CacheBytesDefault = 32 << 20

	// readersMax bounds the concurrent block reads. This number keeps a solid-state disk busy, and
	// leaves the processors free for reads from memory.
	readersMax = 16
	// waitingMax bounds the reads that wait for a turn. Further reads are refused.
	waitingMax = 4096

	// pebbleMemtableBytes is small: a batch of generations is larger than half of it, so
	// Pebble writes the batch directly to a file.
	pebbleMemtableBytes = 128 << 10

	// removedWithin bounds the time until Pebble frees the space of removed generations. By default
	// Pebble would wait until a memtable is full of removals.
	removedWithin = 10 * time.Second
)

// ErrBusy is returned for a read if waitingMax reads wait already.
var ErrBusy = errors.New("too many reads of cold rows are waiting")

// Store owns the cold rows of all shards of a node, in one Pebble. Its methods are safe
// for concurrent use.
type Store struct {
	cfg   Config
	db    *scarce.DB
	cache *otter.Cache[blockKey, []byte]
	index *indexCache

	flights singleflight.Group // concurrent callers share one read of a block
	readers chan struct{}      // one token per read under way
	waiting atomic.Int64
	stats   storeStats
	sets    atomic.Uint32 // number of Records created so far

	mu struct {
		sync.Mutex
		groups map[uint32]*Group
		shared map[uint32]uint32 // the sets of records that several users have shared, with their groups: see Records.Share
		// next is the number of the next generation. It is above all numbers of generations on disk
		// or in snapshots. It never falls while the store is open, so not even a group that was
		// dropped and created again reuses a number.
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
	Hits, Misses uint64  // reads from the cache, reads from disk
	Refused      uint64  // reads that failed with ErrBusy
	Damaged      uint64  // reads of existing rows that failed with ErrDamaged
	ReadSeconds  float64 // time of the reads that Misses counts
	// Reads is a histogram of the time that callers waited for blocks that were not in the cache,
	// including the wait for a turn.
	Reads      Latencies
	CacheBytes uint64

	RecordReads   uint64  // reads of single records
	RecordSeconds float64 // time of the reads that RecordReads counts
}

type blockKey struct {
	group      uint32
	generation uint64
	block      uint32
}

func (k blockKey) String() string {
	return fmt.Sprintf("block %d of generation %d of group %d", k.block, k.generation, k.group)
}

// These are the keys in Pebble. Integers are big-endian.
//
//	'b' | group (4) | generation (8) | block (4)     a block
//	'g' | group (4) | generation (8)                 the index of a generation, see index.go
//	'p' | group (4) | name of a snapshot             the generations that it names (8 each), see pins.go
//	'q' | group (4) | owner (4) | name of a snapshot the same for a snapshot of another group, the owner
//	'r' | group (4) | set (4) | key (8)              a record, see records.go
const (
	keyBlock      = 'b'
	keyGeneration = 'g'
	keyPin        = 'p'
	keyOthersPin  = 'q'
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
	s := &Store{cfg: cfg, cache: cache, index: newIndexCache(), readers: make(chan struct{}, readersMax)}
	s.mu.groups = map[uint32]*Group{}
	o := &pebble.Options{Cache: s.index.pebble, MemTableSize: pebbleMemtableBytes, FlushDelayDeleteRange: removedWithin}
	// Blocks are packed already, so compression would only take time.
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	s.db = scarce.NewDB(scarce.DBConfig{
		Dir: cfg.Dir, Holds: "cold rows", FS: cfg.FS, Logger: cfg.Logger, Fatal: cfg.Fatal, Damaged: s.noteDamage,
	})
	o.FS = s.db.Waiting()
	if err := s.db.Open(o); err != nil {
		return nil, err
	}
	if err := s.removeRecords(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.db.Started.Store(true)
	if err := s.openAll(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.index.fit(s.filesBytes())
	return s, nil
}

// blockOverhead is about the memory that the cache takes for a block in addition to its bytes.
const blockOverhead = 200

// noteDamage logs that a Pebble file is damaged. It logs only the error's text, because the other
// formats of Pebble's errors include a stack.
func (s *Store) noteDamage(info pebble.DataCorruptionInfo) {
	s.db.Limited().Error("cold rows are damaged on disk", "file", info.Path, "err", info.Details.Error())
}

// Close closes the store. Later calls of other methods return scarce.ErrClosed.
func (s *Store) Close() error { return s.db.Close(func() {}) }

// commit writes a batch. The caller has called Use.
func (s *Store) commit(batch *pebble.Batch, sync *pebble.WriteOptions) error {
	bytes := batch.Len() // read it before Commit, which may take over the batch's memory
	if err := batch.Commit(sync); err != nil {
		return err
	}
	s.index.wrote(bytes, s.filesBytes)
	return nil
}

// DiskBytes returns the size of the store's files, 0 after Close.
func (s *Store) DiskBytes() uint64 {
	done, err := s.db.Use()
	if err != nil {
		return 0
	}
	defer done()
	return s.filesBytes()
}

// filesBytes is like DiskBytes, but the caller must have called Use. It is slow: Pebble reads the
// metadata of all its files.
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
