package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

// noFatal fails the test when a group stops for good.
func noFatal(t *testing.T) *failStop {
	stop := newFailStop(func(err error) { t.Error(err) })
	if err := stop.arm(); err != nil {
		t.Fatal(err)
	}
	return stop
}

// countFatal counts the notices.
func countFatal(t *testing.T) (*failStop, *int) {
	n := new(int)
	stop := newFailStop(func(error) { *n++ })
	if err := stop.arm(); err != nil {
		t.Fatal(err)
	}
	return stop, n
}

func mustOpenBolt(t *testing.T, path string) *boltFile {
	t.Helper()
	b, err := openBoltFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.close() })
	return b
}

func testEntry(index uint64, data string) *raft.Log {
	return &raft.Log{Index: index, Term: 3, Type: raft.LogCommand, Data: []byte(data), AppendedAt: time.Unix(int64(index), 0)}
}

func TestCheckedLogGivesBackWhatItStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	l := newCheckedLog(mustOpenBolt(t, path), 7, path, 1<<30, noFatal(t))
	entries := []*raft.Log{
		testEntry(1, "a"), testEntry(2, ""), testEntry(3, "with extensions"),
		{Index: 4, Term: 4, Type: raft.LogConfiguration, Data: bytes.Repeat([]byte("x"), 100_000)},
	}
	entries[2].Extensions = []byte("the caller's")
	var given []raft.Log
	for _, e := range entries {
		given = append(given, *e)
	}
	if err := l.StoreLogs(entries); err != nil {
		t.Fatal(err)
	}
	for i, want := range given {
		if !reflect.DeepEqual(*entries[i], want) {
			t.Errorf("entry %d of the caller was changed: %+v", i+1, entries[i])
		}
		var got raft.Log
		if err := l.GetLog(want.Index, &got); err != nil {
			t.Fatal(err)
		}
		if !got.AppendedAt.Equal(want.AppendedAt) || got.Index != want.Index || got.Term != want.Term || got.Type != want.Type ||
			!bytes.Equal(got.Data, want.Data) || !bytes.Equal(got.Extensions, want.Extensions) {
			t.Errorf("entry %d: %+v, want %+v", i+1, got, want)
		}
	}
	var none raft.Log
	if err := l.GetLog(5, &none); err != raft.ErrLogNotFound {
		t.Errorf("an absent entry: %v", err)
	}
	if l.entries.Load() != 4 || l.bytes.Load() < 100_000 {
		t.Errorf("counted %d entries of %d bytes", l.entries.Load(), l.bytes.Load())
	}
}

// rewriteBolt changes one value of a closed bolt file.
func rewriteBolt(t *testing.T, path string, bucket, key []byte, change func([]byte) []byte) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		return b.Put(key, change(bytes.Clone(b.Get(key))))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func logKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

// Every byte of a stored entry: with it changed the entry is refused, or it is
// a byte that carries nothing but the time of its append.
func TestCheckedLogRefusesEveryChangedByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	stored := testEntry(9, "twelve bytes")
	stored.Extensions = []byte("ext")
	b := mustOpenBolt(t, path)
	if err := newCheckedLog(b, 7, path, 1<<30, noFatal(t)).StoreLog(stored); err != nil {
		t.Fatal(err)
	}
	b.close()
	size := 0
	rewriteBolt(t, path, boltLogBucket, logKey(9), func(v []byte) []byte { size = len(v); return v })
	refused := 0
	for i := range size {
		for _, bit := range []byte{0x01, 0x80} {
			rewriteBolt(t, path, boltLogBucket, logKey(9), func(v []byte) []byte { v[i] ^= bit; return v })
			b := mustOpenBolt(t, path)
			stop, told := countFatal(t)
			var got raft.Log
			err := newCheckedLog(b, 7, path, 1<<30, stop).GetLog(9, &got)
			b.close()
			if err == nil {
				got.AppendedAt = stored.AppendedAt
				if !reflect.DeepEqual(&got, stored) {
					t.Errorf("byte %d changed: entry %+v", i, got)
				}
			} else if refused++; *told != 1 {
				t.Errorf("byte %d changed: told %d times", i, *told)
			}
			rewriteBolt(t, path, boltLogBucket, logKey(9), func(v []byte) []byte { v[i] ^= bit; return v })
		}
	}
	if refused < size {
		t.Errorf("%d of %d changes refused", refused, 2*size)
	}
}

func TestCheckedLogNamesWhatIsDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	b := mustOpenBolt(t, path)
	// As raft-boltdb alone would have stored it.
	if err := b.StoreLog(testEntry(3, "x")); err != nil {
		t.Fatal(err)
	}
	stop, told := countFatal(t)
	l := newCheckedLog(b, 42, path, 1<<30, stop)
	var e raft.Log
	err := l.GetLog(3, &e)
	if !errors.Is(err, errDamaged) || *told != 1 {
		t.Fatalf("%v, told %d times", err, *told)
	}
	for _, part := range []string{"group 42", "entry 3", path} {
		if !bytes.Contains([]byte(err.Error()), []byte(part)) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
	if again := l.StoreLog(testEntry(4, "y")); again == nil || again.Error() != err.Error() {
		t.Errorf("a write after the failure: %v", again)
	}
	if *told != 1 {
		t.Errorf("told %d times", *told)
	}
}

func TestUnsealRefusesShortAndUnknown(t *testing.T) {
	for name, extensions := range map[string][]byte{
		"none": nil, "short": {1, 2, 3, 4}, "version": {2, 0, 0, 0, 0}, "checksum": {1, 0, 0, 0, 0},
	} {
		e := testEntry(1, "x")
		e.Extensions = extensions
		if err := unsealEntry(e); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzUnsealEntry(f *testing.F) {
	e := testEntry(1, "data")
	f.Add(uint64(1), uint64(3), byte(0), []byte("data"), sealEntry(nil, e))
	f.Add(uint64(1), uint64(3), byte(0), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, index, term uint64, kind byte, data, extensions []byte) {
		stored := raft.Log{Index: index, Term: term, Type: raft.LogType(kind), Data: data, Extensions: extensions}
		if unsealEntry(&stored) == nil && !bytes.Equal(sealEntry(nil, &stored), extensions) {
			t.Errorf("accepted %x", extensions)
		}
	})
}

// fillBolt writes a log of n entries of mixed sizes and closes it.
func fillBolt(t *testing.T, path string, n uint64) {
	t.Helper()
	b := mustOpenBolt(t, path)
	defer b.close()
	stop := noFatal(t)
	l := newCheckedLog(b, 7, path, 1<<40, stop)
	random := rand.New(rand.NewPCG(1, n))
	for i := uint64(1); i <= n; {
		var batch []*raft.Log
		for range 1 + random.IntN(40) {
			batch = append(batch, testEntry(i, string(make([]byte, random.IntN(3000)))))
			i++
		}
		if err := l.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := newCheckedStable(b, 7, path, stop).SetUint64(keyTerm, 3); err != nil {
		t.Fatal(err)
	}
}

// Compaction deletes ranges while a bolt cursor walks over them; a file with a
// gap would be refused at the next start.
func TestDeletedRangesLeaveNoGap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	fillBolt(t, path, 3000)
	for _, cut := range [][2]uint64{{1, 1}, {2, 900}, {901, 2000}, {2990, 4000}} {
		b := mustOpenBolt(t, path)
		l := newCheckedLog(b, 7, path, 1<<30, noFatal(t))
		if err := l.DeleteRange(cut[0], cut[1]); err != nil {
			t.Fatal(err)
		}
		var e raft.Log
		for i := cut[0]; i <= cut[1]; i++ {
			if err := l.GetLog(i, &e); err != raft.ErrLogNotFound {
				t.Fatalf("entry %d of %v: %v", i, cut, err)
			}
		}
		b.close()
		if err := checkBoltFile(path); err != nil {
			t.Fatalf("after %v: %v", cut, err)
		}
	}
}

func TestTornBoltFileIsRefused(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "raft.db")
	fillBolt(t, whole, 400)
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	for _, test := range []struct {
		name string
		file []byte
	}{
		{"one byte", content[:1]},
		{"half a page", content[:page/2]},
		{"one page", content[:page]},
		{"four pages", content[:4*page]},
		{"half", content[:len(content)/2]},
		{"zeros", make([]byte, len(content))},
		{"another file", bytes.Repeat([]byte("not bolt "), page)},
		{"first meta", changed(content, 16+40)},
		{"second meta", changed(content, page+16+48)},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "raft.db")
			if err := os.WriteFile(path, test.file, 0o600); err != nil {
				t.Fatal(err)
			}
			b, err := openBoltFile(path)
			if !errors.Is(err, errDamaged) {
				t.Errorf("error %v", err)
			}
			if err == nil {
				b.close()
			}
		})
	}
}

func changed(content []byte, at int) []byte {
	c := bytes.Clone(content)
	c[at] ^= 0x40
	return c
}

// Random damage anywhere in the file: what a start and a read of the whole log
// do not refuse is unchanged.
func TestDamagedBoltFileNeverReadsWrong(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "raft.db")
	fillBolt(t, whole, 60)
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(7, 7))
	refused := 0
	for round := range 300 {
		at := random.IntN(len(content))
		damaged := bytes.Clone(content)
		damaged[at] ^= 1 << random.IntN(8)
		if round%3 == 0 { // a page that was never written
			at -= at % os.Getpagesize()
			copy(damaged[at:], make([]byte, os.Getpagesize()))
		}
		path := filepath.Join(dir, fmt.Sprint(round))
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := readWhole(t, path); err != nil {
			refused++
			if !errors.Is(err, errDamaged) {
				t.Errorf("byte %d: %v", at, err)
			}
		}
		os.Remove(path)
	}
	if refused < 30 {
		t.Errorf("%d of 300 refused", refused)
	}
}

// readWhole opens a log of fillBolt and fails the test when it reads wrong.
func readWhole(t *testing.T, path string) error {
	b, err := openBoltFile(path)
	if err != nil {
		return err
	}
	defer b.close()
	stop := newFailStop(func(error) {})
	l := newCheckedLog(b, 7, path, 1<<40, stop)
	g := &group{log: l, stop: stop}
	if g.snaps, err = openSnapStore(t.TempDir(), 7, hclog.NewNullLogger(), stop); err != nil {
		t.Fatal(err)
	}
	if err := g.recoverLog(newCheckedStable(b, 7, path, stop)); err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err == nil && last < 60 {
		t.Errorf("the log ends at %d", last)
	}
	return err
}

func TestLogCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	under := newCheckedLog(mustOpenBolt(t, path), 7, path, 1<<40, noFatal(t))
	c := newLogCache(under)
	want := map[uint64]string{}
	store := func(first, n uint64, data string) {
		t.Helper()
		var batch []*raft.Log
		for i := first; i < first+n; i++ {
			batch = append(batch, testEntry(i, fmt.Sprint(data, i)))
			want[i] = fmt.Sprint(data, i)
		}
		if err := c.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(first, last uint64) {
		t.Helper()
		if err := c.DeleteRange(first, last); err != nil {
			t.Fatal(err)
		}
		for i := first; i <= last; i++ {
			delete(want, i)
		}
	}
	check := func(what string) {
		t.Helper()
		bytes := 0
		for i := c.mu.first; i < c.mu.next; i++ {
			bytes += entryBytes(&c.mu.ring[i%logCacheEntriesMax])
		}
		if bytes != c.mu.bytes || bytes > logCacheBytesMax {
			t.Fatalf("%s: %d bytes cached, counted %d", what, bytes, c.mu.bytes)
		}
		for i := uint64(1); i < 3000; i++ {
			var e raft.Log
			err := c.GetLog(i, &e)
			data, stored := want[i]
			if stored != (err == nil) || string(e.Data) != data {
				t.Fatalf("%s: entry %d is %.20q, %v; want %.20q", what, i, e.Data, err, data)
			}
		}
	}
	store(1, 100, "a")
	check("some")
	store(101, 1000, "b")
	check("more than fit")
	remove(1, 700)
	check("compacted below and into the cache")
	remove(1090, 1100)
	check("suffix cut")
	store(1090, 20, "c")
	check("suffix written again")
	remove(701, 1109)
	store(2000, 3, "d")
	check("begun anew after a snapshot")
	store(2003, 30, string(make([]byte, 400<<10)))
	check("large entries")
	if c.mu.next-c.mu.first > 11 {
		t.Errorf("%d large entries cached", c.mu.next-c.mu.first)
	}
	store(2033, 1, string(make([]byte, 5<<20)))
	check("an entry larger than the cache")
}
