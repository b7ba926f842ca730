// Command nodelog compares ways to store the logs of many Raft groups on one node. Each writer is a
// group that stores one entry after another, synced, as a leader's main loop does.
//
//	go run . -dir DIR -groups 1,4,16,36 -bytes 200,8192 -waiting 1,32 -for 2s -rounds 3
//
// All stores run in turn, round by round, so that a disk that changes its speed harms them
// alike. A line has the median of the rounds.
package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"

	"github.com/countd/countd/shard/raftstore"
)

var (
	dir     = flag.String("dir", os.TempDir(), "where to write")
	groups  = flag.String("groups", "1,4,16,36", "how many groups write at once")
	sizes   = flag.String("bytes", "200,8192", "bytes of an entry")
	waiting = flag.String("waiting", "1,32", "entries that a group stores at once")
	lasting = flag.Duration("for", 2*time.Second, "how long each store runs in a round")
	rounds  = flag.Int("rounds", 3, "rounds")
	only    = flag.String("only", "", "names of stores; all if empty")
)

// warmUp is how long a store runs before it is measured, so that it creates its files.
const warmUp = 2 * time.Second

// trailing is the number of entries that a group keeps.
const trailing = 10_000

// store opens the logs of some groups.
type store struct {
	name string
	open func(dir string, groups int) ([]raft.LogStore, func() error, error)
}

var stores = []store{
	{"bolt per group", openBolts},
	{"raft-wal per group", openWALs},
	{"raft-wal per node", openSharedWAL},
	{"Pebble per node", openPebble},
	{"segments per node", openSegments},
}

func main() {
	flag.Parse()
	fmt.Println("| groups | bytes | waiting | store | entries/s | CPU µs per entry |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, g := range numbers(*groups) {
		for _, b := range numbers(*sizes) {
			for _, w := range numbers(*waiting) {
				compare(g, b, w)
			}
		}
	}
}

func numbers(list string) (out []int) {
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			log.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func compare(groups, bytes, waiting int) {
	rates, costs := make([][]float64, len(stores)), make([][]float64, len(stores))
	for range *rounds {
		for i, s := range stores {
			if *only != "" && !strings.Contains(*only, s.name) {
				continue
			}
			rate, cost, err := measure(s, groups, bytes, waiting)
			if err != nil {
				log.Fatalf("%s: %v", s.name, err)
			}
			rates[i], costs[i] = append(rates[i], rate), append(costs[i], cost)
		}
	}
	for i, s := range stores {
		if len(rates[i]) > 0 {
			fmt.Printf("| %d | %d | %d | %s | %.0f | %.1f |\n", groups, bytes, waiting, s.name, median(rates[i]), median(costs[i]))
		}
	}
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

func measure(s store, groups, bytes, waiting int) (rate, cost float64, err error) {
	at, err := os.MkdirTemp(*dir, "nodelog")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(at)
	logs, closeAll, err := s.open(at, groups)
	if err != nil {
		return 0, 0, err
	}
	var stored atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	until := time.Now().Add(warmUp + *lasting)
	for _, l := range logs {
		wg.Go(func() {
			if err := write(l, bytes, waiting, until, &stored); err != nil {
				failed.Store(&err)
			}
		})
	}
	time.Sleep(warmUp)
	stored.Store(0)
	cpu, began := cpuTime(), time.Now()
	wg.Wait()
	took, cpu := time.Since(began), cpuTime()-cpu
	if err := failed.Load(); err != nil {
		return 0, 0, *err
	}
	n := float64(stored.Load())
	return n / took.Seconds(), float64(cpu.Microseconds()) / n, closeAll()
}

func write(l raft.LogStore, bytes, waiting int, until time.Time, stored *atomic.Int64) error {
	data := make([]byte, bytes)
	first, next := uint64(1), uint64(1)
	for time.Now().Before(until) {
		entries := make([]*raft.Log, waiting)
		for i := range entries {
			entries[i] = &raft.Log{Index: next, Term: 1, Data: data, AppendedAt: time.Now()}
			next++
		}
		if err := l.StoreLogs(entries); err != nil {
			return err
		}
		stored.Add(int64(waiting))
		if next-first > 2*trailing {
			if err := l.DeleteRange(first, next-1-trailing); err != nil {
				return err
			}
			first = next - trailing
		}
	}
	return nil
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// closers are the stores of a run that has one for each group.
type closers []io.Closer

func (c closers) close() (err error) {
	for _, one := range c {
		err = errors.Join(err, one.Close())
	}
	return err
}

func openBolts(dir string, groups int) (logs []raft.LogStore, closeAll func() error, err error) {
	var all closers
	for i := range groups {
		b, err := raftboltdb.New(raftboltdb.Options{
			Path:        filepath.Join(dir, strconv.Itoa(i)),
			BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		})
		if err != nil {
			return nil, nil, err
		}
		all, logs = append(all, b), append(logs, b)
	}
	return logs, all.close, nil
}

func openWALs(dir string, groups int) (logs []raft.LogStore, closeAll func() error, err error) {
	var all closers
	for i := range groups {
		at := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(at, 0o700); err != nil {
			return nil, nil, err
		}
		w, err := wal.Open(at, wal.WithSegmentSize(8<<20))
		if err != nil {
			return nil, nil, err
		}
		all, logs = append(all, w), append(logs, w)
	}
	return logs, all.close, nil
}

func openSegments(dir string, groups int) (logs []raft.LogStore, closeAll func() error, err error) {
	l, err := raftstore.Open(dir, raftstore.Options{})
	if err != nil {
		return nil, nil, err
	}
	for i := range groups {
		r, err := l.Replica(raftstore.ReplicaID{Group: uint32(i)})
		if err != nil {
			return nil, nil, err
		}
		logs = append(logs, r)
	}
	return logs, l.Close, nil
}

// pebbleLog keeps a group's entries under group and index.
type pebbleLog struct {
	raft.LogStore // nil: the benchmark calls only the methods below
	db            *pebble.DB
	group         uint32
}

func (p *pebbleLog) key(index uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, p.group), index)
}

func (p *pebbleLog) StoreLogs(entries []*raft.Log) error {
	b := p.db.NewBatch()
	for _, e := range entries {
		if err := b.Set(p.key(e.Index), encode(nil, e), nil); err != nil {
			return err
		}
	}
	return b.Commit(pebble.Sync)
}

func (p *pebbleLog) DeleteRange(first, last uint64) error {
	return p.db.DeleteRange(p.key(first), p.key(last+1), pebble.NoSync)
}

func encode(dst []byte, e *raft.Log) []byte {
	dst = binary.AppendUvarint(dst, e.Term)
	dst = append(dst, byte(e.Type))
	dst = binary.AppendVarint(dst, e.AppendedAt.UnixNano())
	dst = binary.AppendUvarint(dst, uint64(len(e.Extensions)))
	dst = append(dst, e.Extensions...)
	return append(dst, e.Data...)
}

func openPebble(dir string, groups int) (logs []raft.LogStore, closeAll func() error, err error) {
	db, err := pebble.Open(dir, &pebble.Options{
		MemTableSize: 16 << 20, MemTableStopWritesThreshold: 4, L0CompactionThreshold: 4, L0StopWritesThreshold: 1000,
		BytesPerSync: 1 << 20, Logger: quiet{},
	})
	if err != nil {
		return nil, nil, err
	}
	for i := range groups {
		logs = append(logs, &pebbleLog{db: db, group: uint32(i)})
	}
	return logs, db.Close, nil
}

type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

// sharedWAL is one raft-wal for all groups: a record holds the entries of all that wait. It
// has no index by group and never moves entries, which flatters it.
type sharedWAL struct {
	w *wal.WAL

	mu      sync.Mutex
	changed *sync.Cond
	waiting []*sharedWrite
	closing bool
	next    uint64
	done    chan struct{}
}

type sharedWrite struct {
	data []byte
	done chan error
}

type sharedLog struct {
	raft.LogStore
	shared *sharedWAL
	group  uint32
}

func (s *sharedLog) StoreLogs(entries []*raft.Log) error {
	w := &sharedWrite{done: make(chan error, 1)}
	for _, e := range entries {
		w.data = binary.AppendUvarint(w.data, uint64(s.group))
		w.data = binary.AppendUvarint(w.data, e.Index)
		w.data = encode(w.data, e)
	}
	s.shared.mu.Lock()
	s.shared.waiting = append(s.shared.waiting, w)
	s.shared.changed.Signal()
	s.shared.mu.Unlock()
	return <-w.done
}

func (s *sharedLog) DeleteRange(uint64, uint64) error { return nil }

func (s *sharedWAL) run() {
	defer close(s.done)
	first := uint64(1)
	for {
		s.mu.Lock()
		for len(s.waiting) == 0 && !s.closing {
			s.changed.Wait()
		}
		all := s.waiting
		s.waiting = nil
		s.mu.Unlock()
		if len(all) == 0 {
			return
		}
		var data []byte
		for _, w := range all {
			data = append(data, w.data...)
		}
		s.next++
		err := s.w.StoreLog(&raft.Log{Index: s.next, Term: 1, Data: data})
		for _, w := range all {
			w.done <- err
		}
		if s.next-first > 2*trailing {
			if err := s.w.DeleteRange(first, s.next-trailing); err != nil {
				log.Fatal(err)
			}
			first = s.next - trailing + 1
		}
	}
}

func openSharedWAL(dir string, groups int) (logs []raft.LogStore, closeAll func() error, err error) {
	w, err := wal.Open(dir, wal.WithSegmentSize(16<<20))
	if err != nil {
		return nil, nil, err
	}
	s := &sharedWAL{w: w, done: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	go s.run()
	for i := range groups {
		logs = append(logs, &sharedLog{shared: s, group: uint32(i)})
	}
	return logs, func() error {
		s.mu.Lock()
		s.closing = true
		s.changed.Signal()
		s.mu.Unlock()
		<-s.done
		return w.Close()
	}, nil
}
