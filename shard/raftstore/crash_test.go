package raftstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// history is the expected contents of a log after each change, and the number of acknowledged
// changes.
type history struct {
	mu     sync.Mutex
	states []model // states[n] after n changes; the last may not be acknowledged yet
	acked  int
}

// make applies a change to the log and to the history.
func (h *history) make(l *Log, o op) error {
	next := h.last().clone()
	o.model(next)
	h.mu.Lock()
	h.states = append(h.states, next)
	h.mu.Unlock()
	err := o.log(l)
	if err == nil {
		h.mu.Lock()
		h.acked++
		h.mu.Unlock()
	}
	return err
}

func (h *history) last() model { return h.states[len(h.states)-1] }

func (h *history) ackedNow() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acked
}

// fits returns "" if the log holds the state after some number of changes between ackedMin and
// ackedMax, and otherwise the difference.
func (h *history) fits(l *Log, ackedMin, ackedMax int) (diff string) {
	for n := ackedMin; n <= min(ackedMax+1, len(h.states)-1); n++ {
		d := h.states[n].differs(l)
		if d == "" {
			return ""
		}
		diff += fmt.Sprintf("\nafter %d changes: %s", n, d)
	}
	return diff
}

// crash is a disk after a crash. At least ackedMin and at most ackedMax changes were acknowledged.
type crash struct {
	disk               *vfs.MemFS
	ackedMin, ackedMax int
	when               string
}

// crashes collects the states of a disk during a log's life.
type crashes struct {
	mu     sync.Mutex
	random *rand.Rand
	disk   *vfs.MemFS
	acked  func() int
	taken  []crash
}

func (c *crashes) hook(next change) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := crash{ackedMin: c.acked(), when: fmt.Sprintf("at the %s of %s", next.kind, next.path)}
	switch n := c.random.IntN(6); {
	case n < 3 && next.kind == "write":
		at.disk = tear(c.disk, next, c.random)
	case n < 4:
		at.disk = c.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: c.random})
	default:
		at.disk = c.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100 * c.random.IntN(2), RNG: c.random})
	}
	at.ackedMax = c.acked()
	c.taken = append(c.taken, at)
	return nil
}

func (c *crashes) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.taken)
}

// A crash at any write, sync, rename, creation or deletion of a file loses no acknowledged change
// and invents none. It does not matter which unsynced data the disk kept: none, all, any pages, or
// any sectors of the running write. The same holds for a crash while the log opens afterwards.
func TestCrashAnywhere(t *testing.T) {
	seeds, changes := uint64(3), 80
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			h := &history{states: []model{{}}}
			c := &crashes{random: rand.New(rand.NewPCG(seed, 3)), disk: newDisk(), acked: h.ackedNow}
			l := openTest(t, &watchedFS{FS: c.disk, hook: c.hook})
			for range changes {
				mustDo(t, h.make(l, randomOp(random, h.last(), 1500)))
			}
			mustDo(t, l.Close())
			t.Logf("%d crashes", len(c.taken))
			for _, at := range c.taken {
				again := &crashes{random: random, disk: at.disk, acked: func() int { return at.ackedMin }}
				whileOpened := 0
				checkCrash(t, h, at, &watchedFS{FS: at.disk, hook: again.hook}, func() { whileOpened = again.count() })
				if whileOpened > 0 {
					second := again.taken[random.IntN(whileOpened)]
					second.ackedMax, second.when = at.ackedMax, at.when+", and then "+second.when
					checkCrash(t, h, second, second.disk, func() {})
				}
			}
		})
	}
}

// checkCrash opens a disk after a crash, checks its contents, and continues to write.
func checkCrash(t *testing.T, h *history, c crash, fs vfs.FS, opened func()) {
	t.Helper()
	l, err := Open(testDir, Options{FS: fs, SegmentBytes: segmentBytesMin})
	if err != nil {
		t.Fatalf("crash %s: %v", c.when, err)
	}
	opened()
	diff := h.fits(l, c.ackedMin, c.ackedMax)
	if diff == "" {
		id := ReplicaID{Group: 77}
		var r *Replica
		if r, err = l.Replica(id); err == nil {
			err = r.StoreLog(&raft.Log{Index: 5, Data: make([]byte, 700)})
		}
	}
	if err = errors.Join(err, l.Close()); err != nil || diff != "" {
		t.Fatalf("crash %s, %d to %d changes acknowledged: %v%s", c.when, c.ackedMin, c.ackedMax, err, diff)
	}
	// The remains of the interrupted batch do not disturb later ones.
	if l, err = Open(testDir, Options{FS: fs, SegmentBytes: segmentBytesMin}); err != nil {
		t.Fatalf("crash %s, opened once more: %v", c.when, err)
	}
	mustDo(t, l.Close())
}

// If the disk is full or fails at any moment, the log acknowledges neither that change nor any
// later one. A restart finds all earlier changes.
func TestDiskThatFails(t *testing.T) {
	for _, kind := range []string{"write", "sync", ""} {
		for after := 0; ; after += 1 + after/4 {
			random := rand.New(rand.NewPCG(uint64(after), 4))
			disk := newDisk()
			broken := &brokenFS{after: after, only: kind, err: errNoSpace}
			l, err := Open(testDir, Options{FS: &watchedFS{FS: disk, hook: broken.hook}, SegmentBytes: segmentBytesMin})
			if err != nil {
				if !errors.Is(err, errNoSpace) {
					t.Fatalf("%s %d: opened with %v", kind, after, err)
				}
				continue
			}
			h := &history{states: []model{{}}}
			for range 150 {
				if err = h.make(l, randomOp(random, h.last(), 1500)); err != nil {
					break
				}
			}
			if err != nil {
				if !errors.Is(err, errNoSpace) {
					t.Fatalf("%s %d: %v", kind, after, err)
				}
				broken.heal()
				if _, err := l.Replica(ReplicaID{Group: 999}); err == nil {
					t.Fatalf("%s %d: a change after the failure", kind, after)
				}
			}
			failed := err != nil
			_ = l.Close()
			l = openTest(t, disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: random}))
			if diff := h.fits(l, h.acked, h.acked); diff != "" {
				t.Fatalf("%s %d: %s", kind, after, diff)
			}
			if !failed {
				break
			}
		}
	}
}

// A sync fails, the process ends, and the next process reads the batch from the system's memory.
// From then on the batch counts as stored, so a crash of the machine must not lose it.
func TestUnsyncedBatchThatWasRead(t *testing.T) {
	disk := newDisk()
	broken := &brokenFS{after: 1 << 30, only: "sync", err: errNoSpace}
	l, err := Open(testDir, Options{FS: &watchedFS{FS: disk, hook: broken.hook}, SegmentBytes: segmentBytesMin})
	mustDo(t, err)
	r, err := l.Replica(ReplicaID{Group: 1})
	mustDo(t, err)
	mustDo(t, r.StoreLog(&raft.Log{Index: 1, Data: make([]byte, 10_000)}))
	broken.mu.Lock()
	broken.after = 0
	broken.mu.Unlock()
	if err := r.StoreLog(&raft.Log{Index: 2, Data: make([]byte, 1000)}); !errors.Is(err, errNoSpace) {
		t.Fatalf("stored with %v", err)
	}
	if err := r.StoreLog(&raft.Log{Index: 2}); !errors.Is(err, errNoSpace) {
		t.Fatalf("stored with %v after a failure", err)
	}
	end := l.writing.end
	_ = l.Close()
	var mu sync.Mutex
	written := map[int64]bool{}
	l = openTest(t, &watchedFS{FS: disk, hook: func(c change) error {
		mu.Lock()
		defer mu.Unlock()
		if c.kind == "write" && c.path == testDir+"/"+segmentName(1) && len(c.data) == 3*sectorBytes {
			written[c.at] = true
		}
		return nil
	}})
	r, err = l.Replica(ReplicaID{Group: 1})
	mustDo(t, err)
	if last, _ := r.LastIndex(); last != 2 {
		t.Fatalf("the last entry is %d", last)
	}
	// A sync alone is not enough: the system may treat the pages as written.
	mu.Lock()
	defer mu.Unlock()
	if !written[int64(end)*sectorBytes] {
		t.Errorf("the batch at sector %d was not written again", end)
	}
}
