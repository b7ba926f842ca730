package shard

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// testSegmentBytes makes segments that are full after some ten small batches.
const testSegmentBytes = 8 << 10

func mustOpenWAL(t *testing.T, dir string) *walStore {
	t.Helper()
	s, err := openWALStore(dir, testSegmentBytes, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close() })
	return s
}

// randomEntry is one without a run of zeros, as those of real requests are.
func randomEntry(random *rand.Rand, index uint64, size int) *raft.Log {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(1 + random.IntN(255))
	}
	return testEntry(index, string(data))
}

// fillWAL stores batches of the given sizes of entries and returns them.
func fillWAL(t *testing.T, s *walStore, batches ...[]int) []*raft.Log {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	l := newCheckedLog(s, 7, s.dir, 1<<40, noFatal(t))
	last, err := l.LastIndex()
	mustDo(t, err)
	var all []*raft.Log
	for _, sizes := range batches {
		var batch []*raft.Log
		for _, size := range sizes {
			last++
			batch = append(batch, randomEntry(random, last, size))
		}
		mustDo(t, l.StoreLogs(batch))
		all = append(all, batch...)
	}
	return all
}

// manySegments are batches for some five segments and a bit of the last.
func manySegments() (batches [][]int) {
	for i := range 70 {
		batches = append(batches, []int{100 + i%7*50, 20, 300})
	}
	return batches
}

// mustHold reads entries back, which end the log.
func mustHold(t *testing.T, s *walStore, entries []*raft.Log) {
	t.Helper()
	l := newCheckedLog(s, 7, s.dir, 1<<40, noFatal(t))
	for _, want := range entries {
		var got raft.Log
		mustDo(t, l.GetLog(want.Index, &got))
		if got.Term != want.Term || !bytes.Equal(got.Data, want.Data) {
			t.Fatalf("entry %d reads %d bytes, want %d", want.Index, len(got.Data), len(want.Data))
		}
	}
	last, err := l.LastIndex()
	if want := entries[len(entries)-1].Index; err != nil || last != want {
		t.Fatalf("the log ends at %d, %v, want %d", last, err, want)
	}
}

// contents returns every file of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, path := range listing(t, dir)[1:] {
		raw, err := os.ReadFile(path)
		mustDo(t, err)
		files[filepath.Base(path)] = string(raw)
	}
	return files
}

func segmentFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	mustDo(t, err)
	return files
}

func patch(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	mustDo(t, err)
	mustDo(t, os.WriteFile(path, change(raw), 0o600))
}

// A log of several segments, one file of it damaged: it is refused, by the name
// of the segment where it is one, and nothing is touched.
func TestDamagedWALIsRefused(t *testing.T) {
	whole := t.TempDir()
	s := mustOpenWAL(t, whole)
	fillWAL(t, s, manySegments()...)
	s.close()
	files := segmentFiles(t, whole)
	sealed, tail := filepath.Base(files[1]), filepath.Base(files[len(files)-1])
	cut := func(n int) func([]byte) []byte { return func(raw []byte) []byte { return raw[:n] } }
	flip := func(at int) func([]byte) []byte { return func(raw []byte) []byte { return changed(raw, at) } }
	for _, test := range []struct {
		name, file string
		damage     func([]byte) []byte // nil to remove the file
	}{
		{"tail missing", tail, nil},
		{"tail empty", tail, cut(0)},
		{"tail cut at a byte", tail, cut(testSegmentBytes - 1)},
		{"tail cut in its batches", tail, cut(1024)},
		{"tail's first batch", tail, flip(100)},
		{"tail's head", tail, flip(9)},
		{"sealed missing", sealed, nil},
		{"sealed empty", sealed, cut(0)},
		{"sealed cut in half", sealed, cut(testSegmentBytes / 2)},
		{"sealed of zeros", sealed, func(raw []byte) []byte { return make([]byte, len(raw)) }},
		{"sealed middle", sealed, flip(testSegmentBytes / 2)},
		{"sealed head", sealed, flip(16)},
		{"first missing", filepath.Base(files[0]), nil},
		{"another's content", sealed, func([]byte) []byte { raw, _ := os.ReadFile(files[2]); return raw }},
		{"list missing", walMetaName, nil},
		{"list empty", walMetaName, cut(0)},
		{"list cut in half", walMetaName, func(raw []byte) []byte { return raw[:len(raw)/2] }},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			mustDo(t, os.CopyFS(dir, os.DirFS(whole)))
			if path := filepath.Join(dir, test.file); test.damage == nil {
				mustDo(t, os.Remove(path))
			} else {
				patch(t, path, test.damage)
			}
			before := contents(t, dir)
			opened, err := openWALStore(dir, testSegmentBytes, hclog.NewNullLogger())
			if err == nil {
				opened.close()
			}
			if !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("opened with %v", err)
			}
			if test.file != walMetaName && !strings.Contains(err.Error(), test.file) {
				t.Errorf("%s is not named: %v", test.file, err)
			}
			after := contents(t, dir)
			delete(before, walMetaName) // bolt makes one where there is none
			delete(after, walMetaName)
			if len(after) != len(before) {
				t.Errorf("%d files of %d are left", len(after), len(before))
			}
			for name, raw := range after {
				if before[name] != raw {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
}

// Segments whose list was put back from an older copy.
func TestOlderListOfSegmentsIsRefused(t *testing.T) {
	dir, older := t.TempDir(), t.TempDir()
	s := mustOpenWAL(t, dir)
	s.close()
	mustDo(t, os.CopyFS(older, os.DirFS(dir)))
	s = mustOpenWAL(t, dir)
	fillWAL(t, s, manySegments()...)
	s.close()
	raw, err := os.ReadFile(filepath.Join(older, walMetaName))
	mustDo(t, err)
	patch(t, filepath.Join(dir, walMetaName), func([]byte) []byte { return raw })
	count := len(segmentFiles(t, dir))
	if opened, err := openWALStore(dir, testSegmentBytes, hclog.NewNullLogger()); !errors.Is(err, errDamaged) {
		t.Errorf("opened with %v", err)
		opened.close()
	}
	if left := len(segmentFiles(t, dir)); left != count {
		t.Errorf("%d segments of %d are left", left, count)
	}
}

// listed returns the list of segments and the content of each, of a closed log.
func listed(t *testing.T, dir string) ([]types.SegmentInfo, [][]byte) {
	t.Helper()
	bolt := mustOpenBolt(t, filepath.Join(dir, walMetaName))
	defer bolt.close()
	state, ok, err := (&walMeta{dir: dir, bolt: bolt}).load()
	if err != nil || !ok {
		t.Fatalf("the list of segments: %v, %v", ok, err)
	}
	var raws [][]byte
	for _, info := range state.Segments {
		raw, err := os.ReadFile(filepath.Join(dir, segment.FileName(info)))
		mustDo(t, err)
		raws = append(raws, raw)
	}
	return state.Segments, raws
}

// Every bit of a full segment, of one that was cut short by force, and of the
// newest: with it changed the segment is refused or holds every entry.
func TestNoChangedBitShortensASegment(t *testing.T) {
	dir := t.TempDir()
	s := mustOpenWAL(t, dir)
	fillWAL(t, s, []int{200}, []int{40, 50}, []int{5000}, []int{4000}, []int{10}, []int{700, 20}, []int{30})
	mustDo(t, s.DeleteRange(8, 9))
	fillWAL(t, s, []int{100}, []int{60, 700}, []int{33})
	s.close()
	infos, raws := listed(t, dir)
	if len(infos) != 3 {
		t.Fatalf("%d segments", len(infos))
	}
	for i, raw := range raws {
		want, err := checkSegment(raw, infos[i])
		mustDo(t, err)
		written := len(bytes.TrimRight(raw, "\x00"))
		refused := 0
		for bit := range 8 * min(len(raw), written+2*walSectorBytes) {
			raw[bit/8] ^= 1 << (bit % 8)
			got, err := checkSegment(raw, infos[i])
			switch {
			case err != nil && !errors.Is(err, errDamaged):
				t.Fatalf("segment %d, bit %d: %v", i, bit, err)
			case err != nil:
				refused++
			case len(got.offsets) != len(want.offsets) || got.end != want.end:
				t.Errorf("segment %d, byte %d, bit %d: %d entries of %d", i, bit/8, bit%8, len(got.offsets), len(want.offsets))
			}
			raw[bit/8] ^= 1 << (bit % 8)
		}
		if refused < 8*(written-8) {
			t.Errorf("segment %d: %d of %d changed bits refused", i, refused, 8*written)
		}
	}
}

// tearings are what a crash can leave of the sectors of a write from one
// position to another: the first few, or any.
func tearings(from, to int) (missing [][]bool) {
	sectors := (to-1)/walSectorBytes - from/walSectorBytes + 1
	random := rand.New(rand.NewPCG(3, 4))
	for written := range sectors {
		m := make([]bool, sectors)
		for i := written; i < sectors; i++ {
			m[i] = true
		}
		missing = append(missing, m)
	}
	for range 50 {
		m := make([]bool, sectors)
		for i := range m {
			m[i] = random.IntN(2) == 0
		}
		m[random.IntN(sectors)] = true
		missing = append(missing, m)
	}
	return missing
}

// The last write is cut short by a crash, in every way: it is gone, what was
// written before it is there, and the log goes on.
func TestTornWriteIsCleared(t *testing.T) {
	for _, test := range []struct {
		name   string
		before [][]int
		torn   []int
	}{
		{"behind others", [][]int{{100}, {200, 300}}, []int{900, 20, 20, 20, 1500, 10}},
		{"small, in two sectors", [][]int{{100}, {290}}, []int{60}},
		{"first of a segment", [][]int{{9000}}, []int{700, 100, 600}},
		{"that fills the segment", [][]int{{3000}, {100}}, []int{2500, 100, 6000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			s := mustOpenWAL(t, dir)
			kept := fillWAL(t, s, test.before...)
			s.close()
			infos, raws := listed(t, dir)
			tail := len(infos) - 1
			mustOpenWAL(t, dir).close()
			start, err := checkSegment(raws[tail], infos[tail])
			mustDo(t, err)
			after := writtenTo(t, dir, infos[tail], test.torn)
			for i, missing := range tearings(start.end, len(bytes.TrimRight(after, "\x00"))) {
				torn := tear(raws[tail], after, start.end, missing)
				copied := t.TempDir()
				mustDo(t, os.CopyFS(copied, os.DirFS(dir)))
				mustDo(t, os.WriteFile(filepath.Join(copied, segment.FileName(infos[tail])), torn, 0o600))
				s, err := openWALStore(copied, testSegmentBytes, hclog.NewNullLogger())
				if err != nil {
					t.Fatalf("tearing %d, %v: %v", i, missing, err)
				}
				mustHold(t, s, kept)
				more := fillWAL(t, s, []int{50, 60})
				s.close()
				s = mustOpenWAL(t, copied)
				mustHold(t, s, append(kept[:len(kept):len(kept)], more...))
				s.close()
			}
		})
	}
}

// writtenTo returns what a segment holds after one more write to a copy of dir.
func writtenTo(t *testing.T, dir string, info types.SegmentInfo, sizes []int) []byte {
	t.Helper()
	copied := t.TempDir()
	mustDo(t, os.CopyFS(copied, os.DirFS(dir)))
	s := mustOpenWAL(t, copied)
	fillWAL(t, s, sizes)
	s.close()
	raw, err := os.ReadFile(filepath.Join(copied, segment.FileName(info)))
	mustDo(t, err)
	return raw
}

// tear returns after with sectors from a position on as they were before. A
// file that the write made longer ends with the last sector that came.
func tear(before, after []byte, from int, missing []bool) []byte {
	torn, length := bytes.Clone(after), len(before)
	for i := range missing {
		start := (from/walSectorBytes + i) * walSectorBytes
		end := min(start+walSectorBytes, len(torn))
		if !missing[i] {
			length = max(length, end)
			continue
		}
		clear(torn[max(start, from):end])
	}
	return torn[:length]
}

// The crash came when a segment was full, and before the next was listed, with
// its file made or not. raft-wal alone refuses every write then.
func TestFullSegmentIsFollowedByTheNext(t *testing.T) {
	for _, made := range []bool{false, true} {
		t.Run(fmt.Sprint("made ", made), func(t *testing.T) {
			dir := t.TempDir()
			s := mustOpenWAL(t, dir)
			entries := fillWAL(t, s, []int{100, 200}, []int{9000})
			eventually(t, "the next segment is listed", func() bool {
				state, _, err := s.meta.load()
				mustDo(t, err)
				return len(state.Segments) == 2
			})
			s.close()
			bolt := mustOpenBolt(t, filepath.Join(dir, walMetaName))
			m := &walMeta{dir: dir, bolt: bolt}
			state, _, err := m.load()
			mustDo(t, err)
			full, next := &state.Segments[0], state.Segments[1]
			state.Segments, state.NextSegmentID = state.Segments[:1], next.ID
			full.SealTime, full.MaxIndex, full.IndexStart = next.SealTime, 0, 0
			mustDo(t, m.CommitState(state))
			if !made {
				mustDo(t, os.Remove(m.path(next)))
			}
			mustDo(t, bolt.close())
			s = mustOpenWAL(t, dir)
			mustHold(t, s, entries)
			entries = append(entries, fillWAL(t, s, []int{10}, []int{20})...)
			s.close()
			mustHold(t, mustOpenWAL(t, dir), entries)
		})
	}
}

// The next segment cannot be made: the write after that says so.
func TestFailedRotationIsTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	s := mustOpenWAL(t, dir)
	mustDo(t, os.RemoveAll(dir))
	stop, told := countFatal(t)
	l := newCheckedLog(s, 7, dir, 1<<40, stop)
	mustDo(t, l.StoreLog(testEntry(1, strings.Repeat("x", testSegmentBytes))))
	err := l.StoreLog(testEntry(2, "x"))
	if !errors.Is(err, os.ErrNotExist) || *told != 1 {
		t.Errorf("%v, told %d times", err, *told)
	}
}

// Patches of a segment, of 4 bytes each: where (3 bytes) and with what.
func FuzzCheckSegment(f *testing.F) {
	dir := f.TempDir()
	s, err := openWALStore(dir, testSegmentBytes, hclog.NewNullLogger())
	if err != nil {
		f.Fatal(err)
	}
	for i := uint64(1); i <= 12; i++ {
		if err := s.StoreLog(testEntry(i, strings.Repeat("entry ", int(i)))); err != nil {
			f.Fatal(err)
		}
	}
	s.close()
	bolt, err := openBoltFile(filepath.Join(dir, walMetaName))
	if err != nil {
		f.Fatal(err)
	}
	m := &walMeta{dir: dir, bolt: bolt}
	state, _, err := m.load()
	bolt.close()
	if err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(m.path(state.Segments[0]))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{}, len(whole))
	f.Add([]byte{0, 0, 32, 2, 0, 1, 0, 3}, len(whole))
	f.Add([]byte{0, 0, 36, 255}, 500)
	f.Fuzz(func(t *testing.T, patches []byte, size int) {
		raw := bytes.Clone(whole)
		for ; len(patches) >= 4; patches = patches[4:] {
			at := int(patches[0])<<16 | int(patches[1])<<8 | int(patches[2])
			raw[at%len(raw)] = patches[3]
		}
		unchanged := bytes.Equal(raw, whole)
		if size >= 0 && size < len(raw) {
			raw = raw[:size]
		}
		for _, limit := range []uint32{testSegmentBytes, uint32(len(raw))} {
			info := state.Segments[0]
			info.SizeLimit = limit
			got, err := checkSegment(raw, info)
			if err != nil && !errors.Is(err, errDamaged) {
				t.Errorf("error %v", err)
			}
			if got.end > len(raw) || len(got.offsets) > 12 && unchanged {
				t.Errorf("%d entries up to %d", len(got.offsets), got.end)
			}
			if unchanged && len(raw) == len(whole) && (err != nil || len(got.offsets) != 12) {
				t.Errorf("a whole segment: %d entries, %v", len(got.offsets), err)
			}
		}
	})
}
