package members

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/internal/scarce"
)

// Config configures Open.
type Config struct {
	Dir string // nobody else may use this directory
	// MemoryBytes bounds the memory for filters, blocks and recent changes of all shards. 0 means
	// MemoryBytesDefault.
	MemoryBytes uint64
	Logger      *slog.Logger
	// Fatal is called if the disk refuses a write. It should end the process.
	Fatal func(error)
	// Groups returns at least all groups that may have had sets on disk before Open. The store
	// needs it if it cannot read from a damaged file which groups are on disk: it removes the file
	// once all groups are open. Without Groups, such a file stays.
	Groups func() []uint32
	// FS is the file system. nil means that of the operating system.
	FS vfs.FS
}

const (
	// MemoryBytesDefault suffices for the filters of 73 million pairs (see filterMemory).
	MemoryBytesDefault = 64 << 20
	// MemoryBytesMin is the least memory that the store works with.
	MemoryBytesMin = 8 << 20

	// blockBytes is small because a lookup that misses the cache reads and decompresses a whole
	// block. With blocks of 16 KiB, a lookup takes twice as long, and pairs take 6 % less space.
	blockBytes = 4 << 10
	// indexBytes is the size of a part of a file's index. A lookup reads one part unless it is cached.
	indexBytes = 16 << 10
	// fileBytes is the size at which Pebble ends a file and begins the next.
	fileBytes = 8 << 20
	// memtables bounds the memtables, including those being flushed. The same number of flushed
	// memtables may also stay in memory, because readers still use them or Pebble will reuse them. A
	// batch of more than half a memtable becomes a memtable of its own, whatever its size.
	memtables = 2
	// memtableMost bounds the size of a memtable. It is below Pebble's own limit.
	memtableMost = 1 << 30
	// Pebble merges files of level 0 into the lower levels once the key ranges of level0Most/2 of
	// them overlap. With a higher value, Pebble merges more files at once, and rewrites each lower
	// file less often.
	level0Most = 8
)

// Store owns the sets of all shards of a node, in one Pebble. Its methods are safe for
// concurrent use.
type Store struct {
	cfg   Config
	db    *scarce.DB
	cache *pebble.Cache
	pairs atomic.Int64 // pairs of the groups in use

	filters filters
	homes   homes

	filterHits, filterMisses atomic.Int64

	damaged atomic.Uint64 // how often Pebble found damage

	stepPairs int // see there; tests change it

	mu struct { // never held during I/O
		sync.Mutex
		groups map[uint32]*suspect // groups that were opened and not dropped since
		// unopened is the number of pairs of each group on disk that was not opened yet.
		unopened map[uint32]uint64
		files    []*damagedFile
		readers  map[*ViewReader]struct{} // open
	}

	// writes is read-locked during each write to Pebble, and write-locked while a damaged file is
	// replaced. It is acquired before all other locks except that of scarce.DB.Use.
	writes sync.RWMutex
	// naming is held while a batch is made and written that hands a home over to another group, or
	// removes homes that have had names. It is acquired after writes.
	naming sync.Mutex
	// excising is write-locked while files are replaced, and read-locked while a caller looks up a
	// key or opens an iterator (see present). Its holder acquires no other lock except mu.
	excising sync.RWMutex
	discards atomic.Uint64 // number of damaged files that were replaced or are about to be
	// While files are replaced, cutting contains the paths of the files that Pebble does not cut.
	// Otherwise it is nil.
	cutting atomic.Pointer[map[string]bool]
}

// Open opens the store, and creates it if it does not exist.
func Open(cfg Config) (*Store, error) { return open(cfg, func(*pebble.Options) {}) }

// open is like Open, but lets tests change Pebble's options.
func open(cfg Config, change func(*pebble.Options)) (*Store, error) {
	if cfg.MemoryBytes == 0 {
		cfg.MemoryBytes = MemoryBytesDefault
	}
	cfg.MemoryBytes = max(cfg.MemoryBytes, MemoryBytesMin)
	if cfg.FS == nil {
		cfg.FS = vfs.Default
	}
	s := &Store{cfg: cfg, stepPairs: stepPairs, cache: pebble.NewCache(int64(cfg.MemoryBytes))}
	s.mu.groups, s.mu.unopened, s.mu.readers = map[uint32]*suspect{}, map[uint32]uint64{}, map[*ViewReader]struct{}{}
	s.filters.look, s.filters.ended = make(chan struct{}, 1), make(chan struct{})
	_ = cfg.FS.Remove(cfg.FS.PathJoin(cfg.Dir, rewrittenName)) // a crash may have left it
	if err := checkManifest(cfg.FS, cfg.Dir); err != nil {
		s.cache.Unref()
		return nil, fmt.Errorf("cannot open members in %s: %w", cfg.Dir, err)
	}
	s.db = scarce.NewDB(scarce.DBConfig{
		Dir: cfg.Dir, Holds: "members", FS: cfg.FS, Logger: cfg.Logger, Fatal: cfg.Fatal, Damaged: s.noteDamage,
	})
	o := s.options()
	o.FS = &tableFS{summingFS{s.db.Waiting()}, s.unreadable}
	change(o)
	if err := s.db.Open(o); err != nil {
		return nil, err
	}
	_ = each(s.present(), []byte{keyState}, func(key, value []byte) (bool, error) {
		if found, err := parseGroupState(value); err == nil { // Group reports errors
			s.mu.unopened[binary.BigEndian.Uint32(key[1:])] = found.state.Pairs
		}
		return true, nil
	})
	batch := s.db.NewBatch()
	defer batch.Close()
	if err := errors.Join(s.homes.find(s.present(), batch), batch.Commit(pebble.NoSync)); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open members in %s: %w", cfg.Dir, err), s.db.Close(func() {}))
	}
	s.db.Started.Store(true)
	go s.fillFilters()
	return s, nil
}

// options returns Pebble's options. Each memtable gets a tenth of the memory, which Pebble reserves
// in the cache. The filters get two thirds, and the rest is for blocks. With larger memtables,
// Pebble merges files less often.
func (s *Store) options() *pebble.Options {
	keys := keySchema()
	o := &pebble.Options{
		Comparer: comparer, KeySchema: keys.Name, KeySchemas: sstable.MakeKeySchemas(keys), Cache: s.cache,
		MemTableSize: min(s.cfg.MemoryBytes/10, memtableMost), MemTableStopWritesThreshold: memtables,
		L0CompactionThreshold: level0Most, L0StopWritesThreshold: 3 * level0Most,
	}
	// Files have no filters, because the groups have better ones. The filter of a file would be a
	// block of a megabyte, and the cache would evict a hundred other blocks for it.
	for i := range o.Levels {
		o.Levels[i].BlockSize, o.Levels[i].IndexBlockSize = blockBytes, indexBytes
		o.TargetFileSizes[i] = fileBytes
	}
	// Even a slow compression would hardly shrink the varying bytes of a block (see columns.go).
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionFastest })
	return o
}

// present reads the keys that the store has at the time of the call. All reads use it, except those
// from Pebble snapshots. For a moment during an ingest with an excise, Pebble shows neither the old
// keys nor the new ones, so present waits for the end of the ingest. An iterator that was opened
// earlier keeps the old keys. A Pebble snapshot is made under Store.writes, and so never during an
// ingest.
type present struct{ of *Store }

func (s *Store) present() present { return present{s} }

// Get implements reader.
func (p present) Get(key []byte) ([]byte, io.Closer, error) {
	p.of.excising.RLock()
	defer p.of.excising.RUnlock()
	return p.of.db.Get(key)
}

// NewIter implements reader.
func (p present) NewIter(o *pebble.IterOptions) (*pebble.Iterator, error) {
	p.of.excising.RLock()
	defer p.of.excising.RUnlock()
	return p.of.db.NewIter(o)
}

// iterate returns an iterator of the keys in [first, end). If onDisk is set, it skips keys that are
// only in memory.
func (s *Store) iterate(first, end []byte, onDisk bool) (*pebble.Iterator, error) {
	return s.present().NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: end, OnlyReadGuaranteedDurable: onDisk})
}

// use keeps the store open, and its files from being replaced, until the caller calls done.
func (s *Store) use() (done func(), err error) {
	end, err := s.db.Use()
	if err != nil {
		return nil, err
	}
	s.writes.RLock()
	return func() { s.writes.RUnlock(); end() }, nil
}

// commit writes a batch. The caller has called Use.
func (s *Store) commit(batch *pebble.Batch, sync *pebble.WriteOptions) error {
	s.writes.RLock()
	defer s.writes.RUnlock()
	return batch.Commit(sync)
}

// Close closes the store, and also open ViewReaders, because a backup may still be reading one. The
// groups must be closed. Later calls of other methods return scarce.ErrClosed.
func (s *Store) Close() error {
	s.db.Stop()
	<-s.filters.ended
	return s.db.Close(func() {
		s.mu.Lock()
		readers := slices.Collect(maps.Keys(s.mu.readers))
		s.mu.Unlock()
		for _, r := range readers {
			r.close()
		}
	})
}

// Stats are a store's figures for metrics. The fields from Hits on count events since Open.
type Stats struct {
	Pairs       int64  // pairs of the groups in use
	DiskBytes   uint64 // size of all files
	MemoryBytes int64  // memory of the block cache, the filters and the memtables

	Hits, Misses             int64 // blocks found in the cache, and blocks that were not
	FilterHits, FilterMisses int64 // lookups that a filter answered, and other lookups
	Damaged                  uint64
}

// Stats returns the figures of the store, all 0 after Close.
func (s *Store) Stats() Stats {
	done, err := s.db.Use()
	if err != nil {
		return Stats{}
	}
	defer done()
	m := s.db.Metrics()
	s.filters.mu.Lock()
	filters := s.filters.bytes
	s.filters.mu.Unlock()
	return Stats{
		Pairs: s.pairs.Load(), DiskBytes: m.DiskSpaceUsage(), MemoryBytes: m.BlockCache.Size + int64(m.MemTable.Size) + filters,
		Hits: m.BlockCache.Hits, Misses: m.BlockCache.Misses, FilterHits: s.filterHits.Load(), FilterMisses: s.filterMisses.Load(),
		Damaged: s.damaged.Load(),
	}
}

// Drop removes the sets of a group. The group must be closed.
func (s *Store) Drop(number uint32) error {
	done, err := s.use()
	if err != nil {
		return err
	}
	defer done()
	batch := s.db.NewBatch()
	defer batch.Close()
	s.naming.Lock()
	defer s.naming.Unlock()
	s.mu.Lock()
	of := s.mu.groups[number]
	s.mu.Unlock()
	for _, kind := range kinds {
		if kind == keyRecord && of != nil && !of.group.recorded.Load() {
			continue // as in prefix.removeAll
		}
		prefix := groupPrefix(kind, number)
		if err := batch.DeleteRange(prefix, scarce.PrefixEnd(prefix), nil); err != nil {
			return fmt.Errorf("cannot remove the members of group %d: %w", number, err)
		}
	}
	if err := errors.Join(s.homes.leave(batch, s.homes.of(number)...), batch.Commit(pebble.Sync)); err != nil {
		return fmt.Errorf("cannot remove the members of group %d: %w", number, err)
	}
	s.mu.Lock()
	delete(s.mu.groups, number)
	delete(s.mu.unopened, number)
	for _, f := range s.mu.files {
		delete(f.loaded, number) // a new group with this number has not begun a Load
	}
	s.mu.Unlock()
	s.retryFilters()
	return nil
}
