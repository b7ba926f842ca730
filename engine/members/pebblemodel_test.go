package members

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/internal/scarce"
)

// Whatever Pebble does with its files, iterators and lookups find the keys of a map. The test
// compares the present keys, the keys of snapshots, and the flushed keys. It uses the store's
// comparer and key schema. TestDamageModel reads through groups; this test seeks many times in one
// iterator.
func TestPebbleModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &pebbleModel{fs: vfs.NewMem(), keys: map[[keyBytes]byte]byte{}, flushed: map[[keyBytes]byte]byte{}}
		m.store = smallFilesOf(t, m.fs, io.Discard)
		defer func() {
			for _, s := range m.snapshots {
				_ = s.disk.Close()
			}
			_ = m.store.Close()
		}()
		t.Repeat(map[string]func(*rapid.T){
			"batch":    m.batch,
			"many":     m.many,
			"remove":   m.removeAll,
			"flush":    m.flush,
			"compact":  m.compact,
			"snapshot": m.snapshot,
			"look":     m.look,
			"":         func(*rapid.T) {},
		})
		m.check(t, m.store.present(), m.keys)
	})
}

type pebbleModel struct {
	fs        vfs.FS
	store     *Store
	value     byte
	keys      map[[keyBytes]byte]byte // at present
	flushed   map[[keyBytes]byte]byte
	snapshots []pebbleSnapshot
}

type pebbleSnapshot struct {
	disk *pebble.Snapshot
	keys map[[keyBytes]byte]byte
}

func drawPrefix(t *rapid.T) prefix {
	return prefix{rapid.Uint32Range(0, 1).Draw(t, "group"), rapid.Uint32Range(1, 2).Draw(t, "generation")}
}

// drawKey returns a key of any kind. Its parts have few values, so that prefixes are often equal.
// Some bytes are FF, because the successor of a prefix then needs a carry.
func drawKey(t *rapid.T) (key [keyBytes]byte) {
	at := drawPrefix(t)
	of := rapid.SampledFrom([]uint64{0, 1, 2, 1<<64 - 1}).Draw(t, "of")
	column := rapid.SampledFrom([]uint8{0, 1, 0xff}).Draw(t, "column")
	id := rapid.SampledFrom([]uint64{0, 1, 2, 3, 0xff, 0x100, 1<<64 - 1}).Draw(t, "id")
	stamp := Stamp(rapid.SampledFrom([]uint64{0, 1, 2, 1<<48 - 1}).Draw(t, "stamp"))
	switch kind := rapid.SampledFrom([]byte("mmmmtttrrrdos")).Draw(t, "kind"); kind {
	case keyMember:
		return at.member(Pair{Row: of, Column: column, Member: id}, stamp)
	case keyTime, keyOf:
		return at.byTime(kind, of, column, Entry{id, stamp})
	case keyState:
		return [keyBytes]byte(full(groupPrefix(keyState, at.group)))
	default:
		return [keyBytes]byte(full(at.number(kind, id)))
	}
}

func (m *pebbleModel) commit(t *rapid.T, b *pebble.Batch) {
	if err := m.store.commit(b, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
}

// batch sets and removes some keys.
func (m *pebbleModel) batch(t *rapid.T) {
	b := m.store.db.NewBatch()
	defer b.Close()
	for range rapid.IntRange(1, 20).Draw(t, "keys") {
		key := drawKey(t)
		if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
			delete(m.keys, key)
			_ = b.Delete(key[:], nil)
			continue
		}
		m.value++
		m.keys[key] = m.value
		_ = b.Set(key[:], []byte{m.value}, nil)
	}
	m.commit(t, b)
}

// many sets enough keys of one kind for several files.
func (m *pebbleModel) many(t *rapid.T) {
	b := m.store.db.NewBatch()
	defer b.Close()
	key := drawKey(t)
	at := rapid.IntRange(groupPrefixBytes+4, keyBytes-1).Draw(t, "byte")
	for range rapid.IntRange(10, 200).Draw(t, "keys") {
		if key[0] == keyState {
			break
		}
		for i := at; i >= prefixBytes; i-- { // increment the key
			if key[i]++; key[i] != 0 {
				break
			}
		}
		m.value++
		m.keys[key] = m.value
		_ = b.Set(key[:], []byte{m.value}, nil)
	}
	m.commit(t, b)
}

// removeAll removes the keys of a generation, of a group, or of a Trim. The same batch may contain
// later changes.
func (m *pebbleModel) removeAll(t *rapid.T) {
	b := m.store.db.NewBatch()
	defer b.Close()
	at := drawPrefix(t)
	remove := func(first, end []byte) {
		maps.DeleteFunc(m.keys, func(key [keyBytes]byte, _ byte) bool {
			return bytes.Compare(key[:], first) >= 0 && bytes.Compare(key[:], end) < 0
		})
		_ = b.DeleteRange(first, end, nil)
	}
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		for _, kind := range generationKinds {
			remove(at.kind(kind), scarce.PrefixEnd(at.kind(kind)))
		}
	case 1:
		for _, kind := range kinds {
			remove(groupPrefix(kind, at.group), scarce.PrefixEnd(groupPrefix(kind, at.group)))
		}
	case 2:
		remove(at.kind(keyOutcome), at.number(keyOutcome, rapid.Uint64Range(0, 300).Draw(t, "to")))
	}
	for range rapid.IntRange(0, 5).Draw(t, "set") {
		key := drawKey(t)
		m.value++
		m.keys[key] = m.value
		_ = b.Set(key[:], []byte{m.value}, nil)
	}
	m.commit(t, b)
}

func (m *pebbleModel) flush(t *rapid.T) {
	if err := m.store.db.Flush(); err != nil {
		t.Fatal(err)
	}
	m.flushed = maps.Clone(m.keys)
}

func (m *pebbleModel) compact(t *rapid.T) {
	first, last := drawKey(t), drawKey(t)
	if bytes.Compare(first[:], last[:]) > 0 {
		first, last = last, first
	}
	if rapid.Bool().Draw(t, "all") || first == last {
		first, last = [keyBytes]byte{}, [keyBytes]byte{0xff}
	}
	m.flush(t) // Compact flushes too
	if err := m.store.db.Compact(t.Context(), first[:], last[:], false); err != nil {
		t.Fatal(err)
	}
}

func (m *pebbleModel) snapshot(t *rapid.T) {
	m.snapshots = append(m.snapshots, pebbleSnapshot{m.store.db.NewSnapshot(), maps.Clone(m.keys)})
	if len(m.snapshots) > 2 {
		_ = m.snapshots[0].disk.Close()
		m.snapshots = m.snapshots[1:]
	}
}

func (m *pebbleModel) look(t *rapid.T) {
	m.check(t, m.store.present(), m.keys)
	for _, s := range m.snapshots {
		m.check(t, s.disk, s.keys)
	}
	it, err := m.store.iterate([]byte{keyMember}, []byte{keyMember + 1}, true)
	if err != nil {
		t.Fatal(err)
	}
	m.seeks(t, it, []byte{keyMember}, m.flushed)
}

// check compares all reads of a reader with a map.
func (m *pebbleModel) check(t *rapid.T, from reader, keys map[[keyBytes]byte]byte) {
	sorted := slices.SortedFunc(maps.Keys(keys), func(a, b [keyBytes]byte) int { return bytes.Compare(a[:], b[:]) })
	n := 0
	err := eachFrom(from, []byte{0}, []byte{0xff}, func(key, value []byte) (bool, error) {
		if n >= len(sorted) || !bytes.Equal(key, sorted[n][:]) || len(value) != 1 || value[0] != keys[sorted[n]] {
			t.Fatalf("key %d of %d is % x", n, len(sorted), key)
		}
		n++
		return true, nil
	})
	if err != nil || n != len(sorted) {
		t.Fatalf("%d keys of %d, %v", n, len(sorted), err)
	}
	for range 10 {
		key := drawKey(t)
		value, closer, err := from.Get(key[:])
		want, in := keys[key]
		if in != (err == nil) || in && value[0] != want {
			t.Fatalf("% x: %v, %v; want %v, %v", key, value, err, want, in)
		}
		if err == nil {
			_ = closer.Close()
		}
	}
	at := drawPrefix(t)
	for _, bound := range [][]byte{at.kind(keyMember), at.kind(keyTime), at.kind(keyOf), at.kind(keyOutcome)} {
		it, err := from.NewIter(&pebble.IterOptions{LowerBound: bound, UpperBound: scarce.PrefixEnd(bound)})
		if err != nil {
			t.Fatal(err)
		}
		m.seeks(t, it, bound, keys)
	}
}

// seeks reads prefixes from it, an iterator of the keys that begin with bound. The prefixes mostly
// ascend. At the end, seeks closes the iterator.
func (m *pebbleModel) seeks(t *rapid.T, it *pebble.Iterator, bound []byte, keys map[[keyBytes]byte]byte) {
	sorted := slices.SortedFunc(maps.Keys(keys), func(a, b [keyBytes]byte) int { return bytes.Compare(a[:], b[:]) })
	var looked [][keyBytes]byte
	for range rapid.IntRange(0, 12).Draw(t, "seeks") {
		key := drawKey(t)
		if rapid.Bool().Draw(t, "existing") && len(sorted) > 0 {
			key = rapid.SampledFrom(sorted).Draw(t, "key")
		}
		if copy(key[:], bound); rapid.Bool().Draw(t, "other") {
			binary.BigEndian.PutUint64(key[listBytes:], rapid.Uint64Range(0, 300).Draw(t, "id"))
		}
		looked = append(looked, key)
	}
	if rapid.IntRange(0, 3).Draw(t, "ascending") > 0 {
		slices.SortFunc(looked, func(a, b [keyBytes]byte) int { return bytes.Compare(a[:], b[:]) })
	}
	for _, key := range looked {
		prefix := comparer.Split.Prefix(key[:])
		first := key[:]
		switch rapid.IntRange(0, 2).Draw(t, "from") {
		case 0:
			first = prefix
		case 1:
			if key[0] != keyMember && key[0] != keyOutcome {
				first = append(bytes.Clone(first), 0)
			}
		}
		var want [][keyBytes]byte
		for _, k := range sorted {
			if bytes.Compare(k[:], first) >= 0 && bytes.HasPrefix(k[:], prefix) {
				want = append(want, k)
			}
		}
		most := rapid.IntRange(1, 300).Draw(t, "most")
		n := 0
		valid := it.SeekPrefixGE(first)
		for ; valid && n < most; valid = it.Next() {
			if n >= len(want) || !bytes.Equal(it.Key(), want[n][:]) || it.Value()[0] != keys[want[n]] {
				t.Fatalf("from % x: line %d is % x, want %d lines", first, n, it.Key(), len(want))
			}
			n++
		}
		if err := it.Error(); err != nil || n != min(most, len(want)) {
			t.Fatalf("from % x: %d lines of %d, %v", first, n, len(want), err)
		}
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
}
