package cold

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/scarce"
)

func closeStore(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func mustWriteRecords(t testing.TB, r *Records, records ...Record) {
	t.Helper()
	if err := r.Write(records); err != nil {
		t.Fatal(err)
	}
}

// checkRecord reads a record with Read, ReadNow and Get, and compares it with want. If want is "",
// the reads must fail.
func checkRecord(t testing.TB, r *Records, key uint64, version uint32, want string) {
	t.Helper()
	v := r.Capture()
	defer v.Close()
	ctx := must.Context(t)
	for name, read := range map[string]func() ([]byte, error){
		"read":    func() ([]byte, error) { return r.Read(ctx, key, version) },
		"now":     func() ([]byte, error) { return r.ReadNow(key, version) },
		"capture": func() ([]byte, error) { return v.Get(nil, key, version) },
	} {
		body, err := read()
		if want == "" {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %q, %v", name, body, err)
			}
		} else if err != nil || string(body) != want {
			t.Errorf("%s: %q, %v, want %q", name, body, err, want)
		}
	}
}

func TestRecords(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	one, other := s.Records(1), s.Records(1)
	mustWriteRecords(t, one, Record{1, 1, []byte("a")}, Record{1<<64 - 1, 1, []byte("b")})
	mustWriteRecords(t, other, Record{1, 1, []byte("of another set")})
	checkRecord(t, one, 1, 1, "a")
	checkRecord(t, one, 1<<64-1, 1, "b")
	checkRecord(t, other, 1, 1, "of another set")
	checkRecord(t, one, 2, 1, "")
	before := one.Capture()
	mustWriteRecords(t, one, Record{1, 2, []byte("later")})
	checkRecord(t, one, 1, 2, "later")
	checkRecord(t, one, 1, 1, "") // the record was replaced
	if err := one.Delete([]uint64{1, 77}); err != nil {
		t.Fatal(err)
	}
	checkRecord(t, one, 1, 2, "")
	if err := one.Remove(); err != nil {
		t.Fatal(err)
	}
	checkRecord(t, one, 1<<64-1, 1, "")
	checkRecord(t, other, 1, 1, "of another set")
	for key, want := range map[uint64]string{1: "a", 1<<64 - 1: "b"} {
		if body, err := before.Get(nil, key, 1); err != nil || string(body) != want {
			t.Errorf("the capture has %q, %v under %d, want %q", body, err, key, want)
		}
	}
	for range 2 {
		if err := before.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := before.Get(nil, 1, 1); !errors.Is(err, scarce.ErrClosed) {
		t.Errorf("a closed capture: %v", err)
	}
	if err := s.Drop(1); err != nil {
		t.Fatal(err)
	}
	checkRecord(t, other, 1, 1, "")
	mustWriteRecords(t, other, Record{5, 1, []byte("of a process before")})
	closeStore(t, s)
	if err := other.Write([]Record{{1, 1, nil}}); !errors.Is(err, scarce.ErrClosed) {
		t.Errorf("a write to a closed store: %v", err)
	}
	if _, err := other.Capture().Get(nil, 5, 1); !errors.Is(err, scarce.ErrClosed) {
		t.Errorf("a capture of a closed store: %v", err)
	}
	s = openStore(t, fs)
	defer closeStore(t, s)
	s.Records(1)
	checkRecord(t, s.Records(1), 5, 1, "")
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyRecord}, UpperBound: []byte{keyRecord + 1}})
	if err != nil {
		t.Fatal(err)
	}
	if it.First() {
		t.Errorf("% x of a process before is there", it.Key())
	}
	if err := it.Close(); err != nil {
		t.Error(err)
	}
}

// A record with one flipped bit is never returned, whether the bit is in the body, the checksum or
// the key.
func TestFlippedBitOfARecord(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	defer closeStore(t, s)
	r := s.Records(3)
	body := []byte("those that a user follows")
	mustWriteRecords(t, r, Record{9, 4, body})
	name := r.name(9)
	value, closer, err := s.db.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	value = bytes.Clone(value)
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(value) {
		flipped := bytes.Clone(value)
		flipped[bit/8] ^= 1 << (bit % 8)
		if err := s.db.Set(name, flipped, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		checkRecord(t, r, 9, 4, "")
	}
	for cut := range value {
		if err := s.db.Set(name, value[:cut], pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		checkRecord(t, r, 9, 4, "")
	}
	for bit := range 64 {
		key := uint64(9) ^ 1<<bit
		if err := s.db.Set(r.name(key), value, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		checkRecord(t, r, key, 4, "")
	}
	if err := s.db.Set(name, value, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	checkRecord(t, r, 9, 4, string(body))
}

// Reads of records do not count as reads of blocks.
func TestRecordReadsAreCounted(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	defer closeStore(t, s)
	r := s.Records(1)
	mustWriteRecords(t, r, Record{1, 1, []byte("a")})
	for range 3 {
		if _, err := r.Read(t.Context(), 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	if told := s.Stats(); told.RecordReads != 3 || told.RecordSeconds <= 0 || told.Reads.Count() != 0 || told.Misses != 0 {
		t.Errorf("%d reads of records in %v s, %d of blocks", told.RecordReads, told.RecordSeconds, told.Reads.Count())
	}
}

// However many records are deleted, none is left.
func TestDeleteManyRecords(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	defer closeStore(t, s)
	r := s.Records(1)
	var records []Record
	var keys []uint64
	for key := range uint64(2*deletedAtOnce + 1) {
		records = append(records, Record{key, 1, []byte("a")})
		keys = append(keys, key)
	}
	mustWriteRecords(t, r, records...)
	if err := r.Delete(keys); err != nil {
		t.Fatal(err)
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: r.prefix(), UpperBound: scarce.PrefixEnd(r.prefix())})
	if err != nil {
		t.Fatal(err)
	}
	if it.First() {
		t.Errorf("% x is there", it.Key())
	}
	if err := it.Close(); err != nil {
		t.Error(err)
	}
}

// Records are not written while the disk is too full.
func TestRecordsOnAFullDisk(t *testing.T) {
	disk := vfs.NewMem()
	s := openStore(t, disk)
	defer closeStore(t, s)
	r := s.Records(1)
	disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: scarce.RoomMin - 1, TotalBytes: 1 << 40})
	if err := r.Write([]Record{{1, 1, []byte("a")}}); !errors.Is(err, ErrFull) {
		t.Errorf("a write to a full disk: %v", err)
	}
	checkRecord(t, r, 1, 1, "")
	disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: scarce.RoomMin, TotalBytes: 1 << 40})
	mustWriteRecords(t, r, Record{1, 1, []byte("a")})
	checkRecord(t, r, 1, 1, "a")
}

func FuzzOpenRecord(f *testing.F) {
	name := (&Records{group: 1, set: 2}).name(3)
	whole := func(version uint32, body string) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, recordCRC(name, version, []byte(body))), body...)
	}
	for i, seed := range [][]byte{nil, {1, 2, 3}, whole(0, ""), whole(1, "a body")} {
		f.Add(uint32(i), seed)
	}
	f.Fuzz(func(t *testing.T, version uint32, value []byte) {
		body, err := openRecord(name, version, value)
		if err == nil && !bytes.Equal(whole(version, string(body)), value) {
			t.Errorf("%x of version %d is taken for %s", value, version, fmt.Sprint(body))
		}
	})
}
