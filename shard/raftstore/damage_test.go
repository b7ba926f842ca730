package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fullLog returns a disk with a log of several segments, and the log's contents.
func fullLog(t *testing.T, changes int) (*vfs.MemFS, model) {
	t.Helper()
	random, disk, m := rand.New(rand.NewPCG(9, 9)), newDisk(), model{}
	l, err := Open(testDir, Options{FS: disk, SegmentBytes: segmentBytesMin})
	mustDo(t, err)
	for range changes {
		mustDo(t, randomOp(random, m, 1500).both(l, m))
	}
	mustDo(t, l.Close())
	return disk, m
}

func segmentsOf(t *testing.T, disk *vfs.MemFS) (paths []string) {
	t.Helper()
	names, err := disk.List(testDir)
	mustDo(t, err)
	for _, name := range names {
		if _, ok := parseSegmentName(name); ok {
			paths = append(paths, testDir+"/"+name)
		}
	}
	slices.Sort(paths)
	return paths
}

// needed returns the files of the live segments: neither the prepared segment nor the spare files.
func needed(t *testing.T, disk *vfs.MemFS) map[string]bool {
	t.Helper()
	l, err := Open(testDir, Options{FS: disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})})
	mustDo(t, err)
	defer l.Close()
	paths := map[string]bool{}
	for _, s := range l.mu.segments {
		paths[s.path] = true
	}
	return paths
}

func readFile(t *testing.T, disk *vfs.MemFS, path string) []byte {
	t.Helper()
	raw, err := disk.UnsafeGetFileDataBuffer(path)
	mustDo(t, err)
	return bytes.Clone(raw)
}

// with returns a copy of a disk in which one file has other contents; nil removes it.
func with(t *testing.T, disk *vfs.MemFS, path string, raw []byte) *vfs.MemFS {
	t.Helper()
	harmed := disk.CrashClone(vfs.CrashCloneCfg{})
	mustDo(t, harmed.Remove(path))
	if raw == nil {
		return harmed
	}
	file, err := harmed.OpenReadWrite(path, vfsCategory)
	mustDo(t, err)
	_, err = file.WriteAt(raw, 0)
	mustDo(t, errors.Join(err, file.Close()))
	return harmed
}

// refusedOrWhole opens a log with one damaged file. The log must either refuse to open, naming the
// file and changing nothing, or be complete.
func refusedOrWhole(t *testing.T, disk *vfs.MemFS, m model, path, harm string) (refused bool) {
	t.Helper()
	before := disk.String()
	l, err := Open(testDir, Options{FS: disk, SegmentBytes: segmentBytesMin})
	if err != nil {
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %s: %v", path, harm, err)
		}
		if after := strings.ReplaceAll(disk.String(), "LOCK", ""); after != strings.ReplaceAll(before, "LOCK", "") {
			t.Errorf("%s: %s: refused, and changed from\n%s to\n%s", path, harm, before, after)
		}
		return true
	}
	defer l.Close()
	if diff := m.differs(l); diff != "" {
		t.Errorf("%s: %s: %s", path, harm, diff)
	}
	return false
}

// The test changes one byte anywhere in a file: the head of a sector, of a batch or of an item, the
// data of an entry, the zeros after it, unwritten sectors, and sectors of an earlier segment in the
// file.
func TestChangedByte(t *testing.T) {
	disk, m := fullLog(t, 150)
	paths, needed := segmentsOf(t, disk), needed(t, disk)
	if len(needed) < 4 {
		t.Fatalf("only %v", needed)
	}
	step := 211
	if testing.Short() {
		step = 509
	}
	for i, path := range paths {
		raw, refused, changed := readFile(t, disk, path), 0, 0
		for at := i; at < len(raw); at += step {
			harmed := bytes.Clone(raw)
			harmed[at] ^= 1 << (at % 8)
			changed++
			if refusedOrWhole(t, with(t, disk, path, harmed), m, path, fmt.Sprintf("byte %d", at)) {
				refused++
			}
		}
		if !needed[path] && refused > 0 || needed[path] && refused < changed {
			t.Errorf("%s: %d of %d changed bytes refused", path, refused, changed)
		}
	}
}

// The test truncates, empties, partly zeroes, swaps or removes files.
func TestHarmedFile(t *testing.T) {
	disk, m := fullLog(t, 150)
	paths, needed := segmentsOf(t, disk), needed(t, disk)
	for i, path := range paths {
		raw := readFile(t, disk, path)
		other := readFile(t, disk, paths[(i+1)%len(paths)])
		zeroed := func(from, to int) []byte {
			harmed := bytes.Clone(raw)
			clear(harmed[from:to])
			return harmed
		}
		harms := map[string][]byte{
			"removed": nil, "emptied": {}, "head zeroed": zeroed(0, 512), "zeroed": zeroed(0, len(raw)),
			"of another segment": other, "longer": append(bytes.Clone(raw), make([]byte, 512)...), "more bytes": append(bytes.Clone(raw), 1),
		}
		for _, bytes := range []int{1, 100, 511, 512, 513, 5000, len(raw) - 512, len(raw) - 1} {
			harms[fmt.Sprintf("cut to %d bytes", bytes)] = raw[:bytes]
		}
		// If the very last batch is lost or torn, it looks as if it had never been acknowledged.
		number, _ := parseSegmentName(path[len(testDir)+1:])
		found, err := scanSegment(raw, number, func([]byte, uint32) error { return nil })
		mustDo(t, err)
		for _, sector := range []int{1, 5, 11} {
			if needed[path] && sector >= found.last {
				continue
			}
			harms[fmt.Sprintf("sector %d zeroed", sector)] = zeroed(sector*512, sector*512+512)
		}
		for harm, content := range harms {
			if refused := refusedOrWhole(t, with(t, disk, path, content), m, path, harm); refused != needed[path] {
				t.Errorf("%s: %s: refused %v", path, harm, refused)
			}
		}
	}
}

// A read finds a sector that was damaged while the log was open.
func TestDamageFoundByARead(t *testing.T) {
	disk := newDisk()
	l := openTest(t, disk)
	r, err := l.Replica(ReplicaID{Group: 3})
	mustDo(t, err)
	mustDo(t, r.StoreLogs(randomEntries(rand.New(rand.NewPCG(1, 1)), 1, 4, 3000)))
	path := segmentsOf(t, disk)[0]
	raw, err := disk.UnsafeGetFileDataBuffer(path)
	mustDo(t, err)
	last := len(bytes.TrimRight(raw, "\x00")) - 1
	raw[last] ^= 4
	first, err := firstUnread(r)
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
		t.Errorf("entry %d: %v", first, err)
	}
	raw[last] ^= 4
	if _, err := firstUnread(r); err != nil {
		t.Error(err)
	}
}

// The fuzzed bytes are a segment. If reseal is set, the checksum of each sector is valid.
func FuzzScanSegment(f *testing.F) {
	var framed framer
	batch := func(items []byte) []byte {
		framed.begin(batchHeadBytes + len(items))
		framed.write(items)
		return bytes.Clone(framed.finish(1, 0))
	}
	random := rand.New(rand.NewPCG(5, 5))
	items := appendBegin(nil, 32, []uint32{1})
	items = appendRange(items, itemCreate, ReplicaID{7, 8}, 0, 0)
	for _, e := range randomEntries(random, 5, 4, 600) {
		items = appendEntry(items, ReplicaID{7, 8}, e)
	}
	items = appendSet(items, ReplicaID{7, 8}, []byte("key"), []byte("value"))
	items = appendRange(items, itemCut, ReplicaID{7, 8}, 5, 6)
	items = appendRemove(appendReplica(items, itemDrop, ReplicaID{7, 8}), 1)
	f.Add(batch(append(items, itemEnd)), true)
	f.Add(batch([]byte{itemEnd}), true)
	f.Add([]byte{}, false)
	f.Fuzz(func(t *testing.T, raw []byte, sealed bool) {
		if sealed {
			reseal(raw)
		}
		found, err := scanSegment(raw, 1, func(batch []byte, _ uint32) error {
			r := readItems(batch)
			var it item
			fold := fold{index: newIndex()}
			for r.next(&it) {
				if it.kind == itemCreate && it.last-it.first > 1000 {
					continue // bound the memory for entries
				}
				if err := fold.change(&it, position{1, 4}); err != nil && !errors.Is(err, ErrDamaged) {
					t.Errorf("%v", err)
				}
			}
			return r.fault()
		})
		if err != nil && !errors.Is(err, ErrDamaged) || found.end > len(raw)/sectorBytes {
			t.Errorf("%+v, %v", found, err)
		}
	})
}

// reseal sets the right checksum of every sector.
func reseal(raw []byte) {
	for at := 0; at+sectorBytes <= len(raw); at += sectorBytes {
		s := raw[at : at+sectorBytes]
		putChecksum(s)
	}
}
