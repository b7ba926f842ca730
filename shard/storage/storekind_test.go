package storage

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChooseLogStore(t *testing.T) {
	const bolt, shared = LogStoreBoltDB, LogStoreShared
	for _, test := range []struct {
		name     string
		record   LogStore // "" for none
		log      LogStore // the log of a group that exists; "" for none
		asked    LogStore
		want     LogStore
		wantErr  error
		errNames []string
	}{
		{"new node", "", "", "", shared, nil, nil},
		{"new node, boltdb asked for", "", "", bolt, bolt, nil, nil},
		{"recorded", bolt, "", "", bolt, nil, nil},
		{"recorded, the same asked for", bolt, bolt, bolt, bolt, nil, nil},
		{"recorded, another asked for", shared, "", bolt, "", ErrOtherLogStore, []string{"of shared", "boltdb was asked for"}},
		{"lost record, boltdb", "", bolt, "", "", ErrDamaged, []string{"raft.db", logStoreFile}},
		{"lost record, shared", "", shared, "", "", ErrDamaged, []string{NodeLogDir, logStoreFile}},
		{"lost record, shared asked for", "", shared, shared, "", ErrDamaged, nil},
		{"unknown name", "", "", "rocksdb", "", ErrUnknownLogStore, []string{"rocksdb"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if test.record != "" {
				mustDo(t, writeLogStore(filepath.Join(dir, logStoreFile), test.record))
			}
			if test.log != "" {
				logs := map[LogStore]string{bolt: "00000/raft.db", shared: NodeLogDir}
				mustDo(t, os.MkdirAll(filepath.Join(dir, logs[test.log]), 0o750))
			}
			got, err := ChooseLogStore(dir, test.asked)
			if got != test.want || !errors.Is(err, test.wantErr) {
				t.Fatalf("%q, %v", got, err)
			}
			for _, name := range test.errNames {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("%q is not in %q", name, err)
				}
			}
			if err != nil {
				return
			}
			if again, err := ChooseLogStore(dir, ""); again != got || err != nil {
				t.Errorf("then %q, %v", again, err)
			}
		})
	}
}

func TestDamagedLogStoreRecordIsRefused(t *testing.T) {
	for _, raw := range []string{"", "\n", logStoreHead, logStoreHead + "\n", logStoreHead + "shared", logStoreHead + "rocksdb\n",
		"countd log store 2: shared\n", logStoreHead + "shared\n\n", strings.Repeat("x", logStoreBytesMax+1)} {
		dir := t.TempDir()
		mustDo(t, os.WriteFile(filepath.Join(dir, logStoreFile), []byte(raw), 0o600))
		if store, err := ChooseLogStore(dir, LogStoreShared); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q is %q, %v", raw, store, err)
		}
	}
}

// The record needs no checksum: a change of any one byte makes it invalid.
func TestChangedByteOfTheLogStoreRecordIsRefused(t *testing.T) {
	for _, store := range []LogStore{LogStoreBoltDB, LogStoreShared} {
		whole := logStoreHead + string(store) + "\n"
		for i := range whole {
			for b := range 256 {
				changed := []byte(whole)
				if changed[i] = byte(b); string(changed) == whole {
					continue
				}
				if got, err := parseLogStore(changed); !errors.Is(err, ErrDamaged) {
					t.Errorf("%q is read as %q, %v", changed, got, err)
				}
			}
		}
	}
}

// OpenStores refuses a group that has a log of the other store.
func TestLogOfTheOtherStoreIsRefused(t *testing.T) {
	eachStore(t, func(t *testing.T, store LogStore) {
		dir := t.TempDir()
		mustOpenStores(t, store, dir).Close()
		for _, other := range []LogStore{LogStoreBoltDB, LogStoreShared} {
			s, err := OpenStores(Config{Dir: dir, LogStore: other})
			if err == nil {
				s.Close()
			}
			if other != store && !errors.Is(err, ErrOtherLogStore) || other == store && err != nil {
				t.Errorf("%s opened as %s: %v", store, other, err)
			}
		}
	})
}

func FuzzParseLogStore(f *testing.F) {
	f.Add([]byte(logStoreHead + "shared\n"))
	f.Add([]byte(logStoreHead))
	f.Fuzz(func(t *testing.T, raw []byte) {
		store, err := parseLogStore(raw)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("error %v", err)
		}
		if err == nil && string(raw) != logStoreHead+string(store)+"\n" {
			t.Errorf("%q is %q", raw, store)
		}
	})
}
