package names

import (
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// uuidOf returns the UUID of version 4 of a number.
func uuidOf(i uint64) string {
	rnd := rand.New(rand.NewPCG(i, 1))
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], rnd.Uint64())
	binary.LittleEndian.PutUint64(b[8:], rnd.Uint64())
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	text := hex.EncodeToString(b[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// BenchmarkNames measures the memory and disk of a name, its first write, and look-ups of 20 names.
func BenchmarkNames(b *testing.B) {
	const total, batch = 2_000_000, 1000
	dir := b.TempDir()
	store, err := cold.Open(cold.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { b.Error(err) }})
	must.Do(b, err)
	m := New(spill.Place{Store: store, Group: 1, Tight: func() bool { return true }})
	defer func() {
		m.Close()
		must.Do(b, store.Close())
	}()
	heap := func() float64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc)
	}
	empty := heap()
	began := time.Now()
	for i := uint64(0); i < total; i += batch {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		for j := range uint64(batch) {
			Ops{{Kind: Assign, Text: uuidOf(i + j)}}.AppendTo(&w, 0, 0)
		}
		m.Apply(rafttest.Command(i/batch+1, codec.AppendChecksum(append(dedup.AppendClock(codec.BeginEntry(nil, codec.KindNames, 1), time.UnixMilli(1000), dedup.Limits{KeyHorizon: 10 * time.Minute, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5}), w.Section()...))))
	}
	first := float64(time.Since(began).Nanoseconds()) / total
	inMemory := (heap() - empty) / total
	read := func(b *testing.B, disk bool) {
		rnd := rand.New(rand.NewPCG(1, 1))
		texts, numbers := make([]string, 100_000), make([]uint64, 100_000)
		for i := range texts {
			texts[i], numbers[i] = uuidOf(rnd.Uint64N(total)), 1+rnd.Uint64N(total)
		}
		byText, byNumber, at := &NumbersQuery{}, &TextsQuery{}, 0
		for b.Loop() {
			at = (at + 20) % len(texts)
			byText.Texts, byNumber.Numbers = texts[at:at+20], numbers[at:at+20]
			must.Do(b, byText.Answer(m, nil, disk, time.Now().Add(time.Minute)))
			must.Do(b, byNumber.Answer(m, nil, disk, time.Now().Add(time.Minute)))
		}
	}
	b.Run("in memory", func(b *testing.B) {
		read(b, false)
		b.ReportMetric(inMemory, "B/name")
		b.ReportMetric(first, "ns/first-write")
	})
	for moved := 1; moved > 0; {
		var err error
		moved, err = m.Bodies().Spill(0, math.MaxInt64, func() bool { return true })
		must.Do(b, err)
	}
	snapshot := len(rafttest.Persisted(b, m))
	spilled := (heap() - empty) / total
	b.Run("on disk", func(b *testing.B) {
		read(b, true)
		b.ReportMetric(spilled, "B/name")
		b.ReportMetric(float64(m.Bytes())/total, "told-B/name")
		b.ReportMetric(float64(snapshot)/total, "snapshot-B/name")
		b.ReportMetric(float64(bytesIn(b, dir))/total, "records-B/name")
	})
}

func bytesIn(b *testing.B, dir string) (bytes int64) {
	must.Do(b, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		bytes += info.Size()
		return err
	}))
	return bytes
}
