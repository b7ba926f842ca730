package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

// noFatal returns a FailStop that fails the test.
func noFatal(t *testing.T) *FailStop {
	stop := NewFailStop(func(err error) { t.Error(err) }, func(error) {})
	if err := stop.Arm(); err != nil {
		t.Fatal(err)
	}
	return stop
}

// countFatal returns a FailStop and the number of its notifications.
func countFatal(t *testing.T) (*FailStop, *int) {
	n := new(int)
	stop := NewFailStop(func(error) { *n++ }, func(error) {})
	if err := stop.Arm(); err != nil {
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
	t.Cleanup(func() { b.Close() })
	return b
}

// eachStore runs a test over both log stores.
func eachStore(t *testing.T, test func(t *testing.T, store LogStore)) {
	for _, store := range []LogStore{LogStoreBoltDB, LogStoreShared} {
		t.Run(string(store), func(t *testing.T) { test(t, store) })
	}
}

// mustOpenStores opens the stores of a group in dir.
func mustOpenStores(t *testing.T, store LogStore, dir string) Stores {
	t.Helper()
	s, err := OpenStores(Config{Dir: dir, LogStore: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func testEntry(index uint64, data string) *raft.Log {
	return &raft.Log{Index: index, Term: 3, Type: raft.LogCommand, Data: []byte(data), AppendedAt: time.Unix(int64(index), 0)}
}

func TestCheckedLogGivesBackWhatItStored(t *testing.T) {
	eachStore(t, testCheckedLogGivesBackWhatItStored)
}

func testCheckedLogGivesBackWhatItStored(t *testing.T, store LogStore) {
	l := NewLog(mustOpenStores(t, store, t.TempDir()), 7, "log", 1<<30, noFatal(t))
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
	//nolint:errorlint // raft compares the error itself
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

// After a change of any byte of a stored entry, the log refuses the entry, unless the byte belongs
// to the time of its append.
func TestCheckedLogRefusesEveryChangedByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	stored := testEntry(9, "twelve bytes")
	stored.Extensions = []byte("ext")
	b := mustOpenBolt(t, path)
	if err := NewLog(b, 7, path, 1<<30, noFatal(t)).StoreLog(stored); err != nil {
		t.Fatal(err)
	}
	b.Close()
	size := 0
	rewriteBolt(t, path, boltLogBucket, logKey(9), func(v []byte) []byte { size = len(v); return v })
	refused := 0
	for i := range size {
		for _, bit := range []byte{0x01, 0x80} {
			rewriteBolt(t, path, boltLogBucket, logKey(9), func(v []byte) []byte { v[i] ^= bit; return v })
			b := mustOpenBolt(t, path)
			stop, told := countFatal(t)
			var got raft.Log
			err := NewLog(b, 7, path, 1<<30, stop).GetLog(9, &got)
			b.Close()
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
	// Store an entry as raft-boltdb alone would.
	if err := b.StoreLog(testEntry(3, "x")); err != nil {
		t.Fatal(err)
	}
	stop, told := countFatal(t)
	l := NewLog(b, 42, path, 1<<30, stop)
	var e raft.Log
	err := l.GetLog(3, &e)
	if !errors.Is(err, ErrDamaged) || *told != 1 {
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
		if err := unsealEntry(e); !errors.Is(err, ErrDamaged) {
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

// bolt deletes entries at the front in steps, between which others can be stored. It deletes the
// end, or a whole log, in one step.
func TestBoltDeletesTheFrontInSteps(t *testing.T) {
	const entries = 2*boltDeleteMax + 100
	path := filepath.Join(t.TempDir(), "raft.db")
	b, err := openBoltFile(path)
	mustDo(t, err)
	defer b.Close()
	var logs []*raft.Log
	for i := range uint64(entries) {
		logs = append(logs, &raft.Log{Index: i + 1, Term: 1, Data: []byte("x")})
	}
	mustDo(t, b.StoreLogs(logs))
	transactions := func() uint64 {
		file, err := os.Open(path)
		mustDo(t, err)
		defer file.Close()
		info, err := file.Stat()
		mustDo(t, err)
		meta, err := readBoltMetas(file, info.Size())
		mustDo(t, err)
		return meta.txid
	}
	for _, step := range []struct {
		name             string
		first, last      uint64
		want             uint64 // number of transactions
		wantFrom, wantTo uint64 // the remaining log
	}{
		{"front", 1, 2*boltDeleteMax + 50, 3, 2*boltDeleteMax + 51, entries},
		{"front, some gone before", 1, 2*boltDeleteMax + 60, 1, 2*boltDeleteMax + 61, entries},
		{"end", entries - 9, entries, 1, 2*boltDeleteMax + 61, entries - 10},
		{"all", 1, entries, 1, 0, 0},
	} {
		before := transactions()
		mustDo(t, b.DeleteRange(step.first, step.last))
		first, err := b.FirstIndex()
		mustDo(t, err)
		last, err := b.LastIndex()
		mustDo(t, err)
		if got := transactions() - before; got != step.want || first != step.wantFrom || last != step.wantTo {
			t.Errorf("%s: %d transactions, want %d; the log is %d…%d", step.name, got, step.want, first, last)
		}
	}
}
