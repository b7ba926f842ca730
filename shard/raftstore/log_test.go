package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// firstUnread returns the index of the first entry that cannot be read.
func firstUnread(r *Replica) (uint64, error) {
	first, _ := r.FirstIndex()
	last, _ := r.LastIndex()
	for index := first; index > 0 && index <= last; index++ {
		var e raft.Log
		if err := r.GetLog(index, &e); err != nil {
			return index, err
		}
	}
	return 0, nil
}

// The log refuses entries that would leave a gap, and stores none of them.
func TestGapsAreRefused(t *testing.T) {
	l := openTest(t, vfs.NewMem())
	r, err := l.Replica(ReplicaID{Group: 1})
	mustDo(t, err)
	entries := func(indexes ...uint64) (logs []*raft.Log) {
		for _, i := range indexes {
			logs = append(logs, &raft.Log{Index: i})
		}
		return logs
	}
	mustDo(t, r.StoreLogs(entries(5, 6, 7, 8)))
	for name, err := range map[string]error{
		"behind a gap":     r.StoreLogs(entries(10)),
		"over another":     r.StoreLogs(entries(8)),
		"before the first": r.StoreLogs(entries(4)),
		"index 0":          r.StoreLogs(entries(0)),
		"a gap inside":     r.StoreLogs(entries(9, 11)),
		"a hole":           r.DeleteRange(6, 7),
		"backwards":        r.DeleteRange(8, 5),
	} {
		if !errors.Is(err, ErrGap) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, outside := range [][2]uint64{{1, 4}, {9, 20}} {
		mustDo(t, r.DeleteRange(outside[0], outside[1]))
	}
	if first, last := r.bounds(); first != 5 || last != 8 {
		t.Errorf("entries %d to %d", first, last)
	}
	mustDo(t, r.DeleteRange(5, 8))
	mustDo(t, r.StoreLogs(entries(100, 101))) // after a snapshot
	mustDo(t, r.StoreLogs(nil))
	other := &Replica{log: l, id: ReplicaID{Group: 2}}
	if err := errors.Join(other.Set([]byte("k"), nil)); err == nil {
		t.Error("a value of a replica that is not there")
	}
	mustDo(t, l.Drop(ReplicaID{Group: 2}))
	again, err := l.Replica(r.id)
	mustDo(t, err)
	r.Close()
	for name, err := range map[string]error{"StoreLog": r.StoreLogs(entries(102)), "DeleteRange": r.DeleteRange(100, 100), "Set": r.Set([]byte("k"), nil)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s of a closed replica: %v", name, err)
		}
	}
	mustDo(t, again.StoreLogs(entries(102)))
	r = again
	mustDo(t, l.Close())
	if err := r.StoreLogs(entries(103)); !errors.Is(err, ErrClosed) {
		t.Errorf("stored in a closed log: %v", err)
	}
}

// Open refuses a directory whose log is already open.
func TestLogIsOpenOnce(t *testing.T) {
	fs, dir := vfs.Default, t.TempDir()
	l, err := Open(dir, Options{FS: fs, SegmentBytes: segmentBytesMin})
	mustDo(t, err)
	if second, err := Open(dir, Options{FS: fs}); err == nil {
		t.Error("opened twice", second.Close())
	}
	mustDo(t, l.Close())
	l, err = Open(dir, Options{})
	mustDo(t, err)
	mustDo(t, errors.Join(l.Close(), l.Close()))
}

// The log stores entries of any size: they fill sectors, a batch, or more than a segment.
func TestEntriesOfAnySize(t *testing.T) {
	fs := vfs.NewMem()
	l := openTest(t, fs)
	r, err := l.Replica(ReplicaID{Group: 1, Number: 1 << 60})
	mustDo(t, err)
	var want []*raft.Log
	for i, size := range []int{0, 1, 400, 470, 480, 496, 512, 5000, segmentBytesMin, 100_000, batchBytesMax, 3} {
		want = append(want, &raft.Log{Index: uint64(i + 1), Data: bytes.Repeat([]byte{byte(i + 1)}, size)})
	}
	for range 2 {
		if last, _ := r.LastIndex(); last == 0 {
			mustDo(t, r.StoreLogs(want[:5]))
			mustDo(t, r.StoreLogs(want[5:]))
		}
		for _, e := range want {
			var got raft.Log
			if err := r.GetLog(e.Index, &got); err != nil || !bytes.Equal(got.Data, e.Data) {
				t.Fatalf("entry %d: %d bytes, %v", e.Index, len(got.Data), err)
			}
		}
		mustDo(t, l.Close())
		l = openTest(t, fs)
		r, err = l.Replica(ReplicaID{Group: 1, Number: 1 << 60})
		mustDo(t, err)
	}
}

// Deleted entries free their space although one replica keeps a few old entries: the cleaner
// writes those again at the end of the log. A concurrent reader and a reopened log still find
// them.
func TestLaggingReplicaKeepsNobody(t *testing.T) {
	fs := vfs.NewMem()
	l := openTest(t, fs)
	lagging, err := l.Replica(ReplicaID{Group: 1})
	mustDo(t, err)
	busy, err := l.Replica(ReplicaID{Group: 2})
	mustDo(t, err)
	random := rand.New(rand.NewPCG(8, 8))
	m := model{ReplicaID{Group: 1}: {}, ReplicaID{Group: 2}: {}}
	var most int64
	index := uint64(1)
	for round := range 100 {
		if round%10 == 0 {
			e := randomEntries(random, uint64(round/10+1), 1, 500)
			mustDo(t, lagging.StoreLogs(e))
			m[ReplicaID{Group: 1}].entries = append(m[ReplicaID{Group: 1}].entries, *e[0])
		}
		mustDo(t, busy.StoreLogs(randomEntries(random, index, 10, 2000)))
		if round > 0 {
			mustDo(t, busy.DeleteRange(index-10, index-1))
		}
		index += 10
		if i, err := firstUnread(lagging); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		most = max(most, l.Usage().Bytes)
	}
	mustDo(t, busy.DeleteRange(1, index))
	delete(m, ReplicaID{Group: 2})
	m[ReplicaID{Group: 2}] = &modelReplica{}
	few := int64(cleanSegments+sparesMax+4) * segmentBytesMin
	eventually(t, "the space is given back", func() bool {
		return l.Usage().Bytes <= few && len(segmentsOf(t, fs)) <= cleanSegments+sparesMax+4
	})
	if diff := m.differs(l); diff != "" {
		t.Fatal(diff)
	}
	mustDo(t, l.Close())
	l = openTest(t, fs)
	if diff := m.differs(l); diff != "" {
		t.Fatal(diff)
	}
	t.Logf("at most %d segments", most/segmentBytesMin)
}

// Replicas write, delete, vote and read concurrently, while the cleaner removes segments and their
// files are reused:
//
//  1. each replica reads its own entries as it wrote them;
//  2. no read returns data of a later segment in a reused file;
//  3. afterwards, and after a restart, the log has everything.
func TestReplicasAtOnce(t *testing.T) {
	fs := vfs.NewMem()
	l := openTest(t, fs)
	m := model{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for g := range uint32(6) {
		wg.Go(func() {
			random, id := rand.New(rand.NewPCG(uint64(g), 1)), ReplicaID{Group: g}
			r, err := l.Replica(id)
			own := &modelReplica{values: map[string]string{}}
			for range 60 {
				if err != nil {
					break
				}
				switch n := random.IntN(10); {
				case n < 6:
					entries := randomEntries(random, own.last()+1, 1+random.IntN(5), 800)
					for _, e := range entries {
						own.entries = append(own.entries, *e)
					}
					err = r.StoreLogs(entries)
				case n < 8:
					own.values["term"] = fmt.Sprint(n, random.Uint64())
					err = r.Set([]byte("term"), []byte(own.values["term"]))
				case len(own.entries) > 0:
					first, last := own.entries[0].Index, own.entries[len(own.entries)/2].Index
					if g > 1 && first < last { // the others keep their entries
						own.cut(first, last-1)
						err = r.DeleteRange(first, last-1)
					}
				}
				if diff := own.differs(r); err == nil && diff != "" {
					err = errors.New(diff)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			m[id] = own
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	wg.Wait()
	mustDo(t, l.Close())
	l = openTest(t, fs)
	if diff := m.differs(l); diff != "" {
		t.Fatal(diff)
	}
}

// One sync makes the changes of several waiting replicas durable.
func TestOneSyncForAll(t *testing.T) {
	var syncs atomic.Int64
	l := openTest(t, &watchedFS{FS: vfs.NewMem(), hook: func(c change) error {
		if c.kind == "sync" && c.path == testDir+"/"+segmentName(1) {
			syncs.Add(1)
		}
		return nil
	}})
	var replicas []*Replica
	for g := range uint32(20) {
		r, err := l.Replica(ReplicaID{Group: g})
		mustDo(t, err)
		replicas = append(replicas, r)
	}
	l.queue.Lock()
	l.queue.busy = true // as if another goroutine wrote
	l.queue.Unlock()
	before := syncs.Load()
	var wg sync.WaitGroup
	for _, r := range replicas {
		wg.Go(func() {
			if err := r.StoreLog(&raft.Log{Index: 1, Data: []byte("x")}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all wait", func() bool {
		l.queue.Lock()
		defer l.queue.Unlock()
		return len(l.queue.waiting) == len(replicas)
	})
	l.queue.Lock()
	l.queue.busy = false
	l.queue.changed.Signal()
	l.queue.Unlock()
	wg.Wait()
	if n := syncs.Load() - before; n != 1 {
		t.Errorf("%d syncs", n)
	}
}

// A read covers whole sectors, so it may include a sector of the next batch that the system has
// copied only in part.
func TestReadBesideAWrite(t *testing.T) {
	disk := newDisk()
	var reader atomic.Pointer[Replica]
	var reads atomic.Int32
	l := openTest(t, &watchedFS{FS: disk, hook: func(next change) error {
		r := reader.Load()
		if r == nil || next.kind != "write" || next.path != testDir+"/"+segmentName(1) {
			return nil
		}
		file, err := disk.OpenReadWrite(next.path, vfsCategory)
		if err != nil {
			return err
		}
		_, err = file.WriteAt(next.data[:sectorBytes/2], next.at)
		if err = errors.Join(err, file.Close()); err == nil {
			reads.Add(1)
			_, err = firstUnread(r)
		}
		return err
	}})
	r, err := l.Replica(ReplicaID{Group: 1})
	mustDo(t, err)
	mustDo(t, r.StoreLog(&raft.Log{Index: 1, Data: []byte("short")}))
	reader.Store(r)
	for i, size := range []int{0, 440, 450, 460, 470, 480, 1000} { // batches end at various places
		mustDo(t, r.StoreLog(&raft.Log{Index: uint64(i + 2), Data: bytes.Repeat([]byte{7}, size)}))
	}
	if reads.Load() != 7 {
		t.Errorf("%d reads beside writes", reads.Load())
	}
}

// The log does not remove a live segment.
func TestNeededSegmentStays(t *testing.T) {
	l := openTest(t, newDisk())
	r, err := l.Replica(ReplicaID{Group: 1})
	mustDo(t, err)
	mustDo(t, r.StoreLogs(randomEntries(rand.New(rand.NewPCG(1, 1)), 1, 1, 1)))
	mustDo(t, r.StoreLogs([]*raft.Log{{Index: 2, Data: make([]byte, segmentBytesMin)}}))
	for _, number := range []uint32{1, 2, 3} { // segment 1 has an entry, 2 is being written, 3 does not exist
		if err := l.submit(&request{kind: itemRemove, items: appendRemove(nil, number), segment: number}); err == nil {
			t.Errorf("segment %d was removed", number)
		}
	}
	if i, err := firstUnread(r); err != nil {
		t.Errorf("entry %d: %v", i, err)
	}
}

// On a full disk, no partial file of the next segment is left.
func TestHalfASegmentIsNotLeft(t *testing.T) {
	disk := newDisk()
	next := testDir + "/" + segmentName(2)
	var failed atomic.Bool
	l := openTest(t, &watchedFS{FS: disk, hook: func(c change) error {
		if c.kind == "sync" && c.path == next {
			failed.Store(true)
			return errNoSpace
		}
		return nil
	}})
	eventually(t, "the next segment could not be made", func() bool { return failed.Load() && len(l.next) == 1 })
	if _, err := disk.Stat(next); !isNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

// Expected entries share a sync, although some arrive only after several yields. The log does not
// wait for entries that do not arrive.
func TestExpectedEntriesShareASync(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // with more processors the number of yields proves nothing
	var syncs atomic.Int64
	l := openTest(t, &watchedFS{FS: vfs.NewMem(), hook: func(c change) error {
		if c.kind == "sync" && c.path == testDir+"/"+segmentName(1) {
			syncs.Add(1)
		}
		return nil
	}})
	l.yieldMax = time.Hour
	var replicas []*Replica
	for g := range uint32(4) {
		r, err := l.Replica(ReplicaID{Group: g})
		mustDo(t, err)
		replicas = append(replicas, r)
	}
	for index, expected := range []int{len(replicas), len(replicas) + 1} {
		before := syncs.Load()
		l.Expect(expected)
		var wg sync.WaitGroup
		for i, r := range replicas {
			wg.Go(func() {
				for range 3 * i {
					runtime.Gosched()
				}
				if err := r.StoreLog(&raft.Log{Index: uint64(index) + 1, Data: []byte("x")}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := syncs.Load() - before; n != 1 {
			t.Errorf("%d of %d entries that are expected: %d syncs", len(replicas), expected, n)
		}
	}
	before := syncs.Load()
	mustDo(t, replicas[0].StoreLog(&raft.Log{Index: 3}))
	if n := syncs.Load() - before; n != 1 {
		t.Errorf("one entry: %d syncs", n)
	}
}
