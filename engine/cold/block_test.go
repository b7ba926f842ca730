package cold

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
)

var testName = []byte("any name")

func blocksOf(p *engine.Page) [][]byte {
	var all [][]byte
	for from := 0; from < len(p.IDs); {
		var b []byte
		b, from = encodeBlock(nil, testName, p, from)
		all = append(all, b)
	}
	return all
}

// mustHold reads all rows of blocks with appendTo and with get. It compares them with p, from which
// the blocks were encoded.
func mustHold(t rapid.TB, blocks [][]byte, p *engine.Page) {
	t.Helper()
	got := engine.Page{Width: p.Width}
	row := make([]int64, p.Width)
	for _, b := range blocks {
		k, err := openBlock(testName, b)
		if err != nil {
			t.Fatal(err)
		}
		from := len(got.IDs)
		if err := k.appendTo(&got, 0, 1<<64-1); err != nil {
			t.Fatal(err)
		}
		for i := from; i < len(got.IDs); i++ {
			if err := k.get(got.IDs[i], row); err != nil || !slices.Equal(row, got.Row(i)) {
				t.Fatalf("id %d reads %v, want %v: %v", got.IDs[i], row, got.Row(i), err)
			}
			next := got.IDs[i] + 1
			if _, there := slices.BinarySearch(p.IDs, next); there {
				continue
			}
			if err := k.get(next, row); err != nil || slices.ContainsFunc(row, func(v int64) bool { return v != 0 }) {
				t.Fatalf("absent id %d reads %v: %v", next, row, err)
			}
		}
	}
	if !slices.Equal(got.IDs, p.IDs) || !slices.Equal(got.Counts, p.Counts) {
		t.Fatalf("%d rows came back of %d, or other ones", len(got.IDs), len(p.IDs))
	}
}

func TestBlocksHoldRows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := &engine.Page{Width: rapid.IntRange(1, engine.ColumnsMax).Draw(rt, "width")}
		gapBits := rapid.IntRange(0, 54).Draw(rt, "gap bits")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		id := rapid.Uint64().Draw(rt, "first")
		negative := rapid.Bool().Draw(rt, "negative")
		for range rapid.IntRange(1, 2500).Draw(rt, "rows") {
			p.IDs = append(p.IDs, id)
			for range p.Width {
				v := int64(r.Uint64() >> 1 >> r.IntN(63))
				if r.IntN(3) == 0 {
					v = 0
				}
				if negative && r.IntN(4) == 0 {
					v = -v - 1
				}
				p.Counts = append(p.Counts, v)
			}
			gap := 1 + r.Uint64N(1<<gapBits)
			if id+gap < id {
				break
			}
			id += gap
		}
		mustHold(rt, blocksOf(p), p)
	})
}

func TestBlocksHoldTheEnds(t *testing.T) {
	for name, p := range map[string]*engine.Page{
		"both ends of ids":    {IDs: []uint64{0, 1<<64 - 1}, Width: 1, Counts: []int64{1, 2}},
		"both ends of counts": {IDs: []uint64{7, 8}, Width: 2, Counts: []int64{1<<63 - 1, -1 << 63, -1 << 63, 1<<63 - 1}},
		"zeros":               {IDs: []uint64{7, 8, 9}, Width: 3, Counts: make([]int64, 9)},
	} {
		t.Run(name, func(t *testing.T) { mustHold(t, blocksOf(p), p) })
	}
}

// A flipped bit, a cut block and a block under another name are detected.
func TestDamagedBlocksAreRefused(t *testing.T) {
	p := weiboRows(t, 300)
	b, _ := encodeBlock(nil, testName, p, 0)
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := openBlock(testName, b); !errors.Is(err, ErrDamaged) {
				t.Fatalf("byte %d bit %d: %v", i, bit, err)
			}
			b[i] ^= 1 << bit
		}
		if _, err := openBlock(testName, b[:i]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
	if _, err := openBlock([]byte("another"), b); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
}

// weiboRows returns rows with the counts of real posts, or with synthetic counts if the data set is
// missing. The gaps between ids are those of a shard that gets 200 posts a second.
func weiboRows(t testing.TB, n int) *engine.Page {
	file, err := os.Open("../../../shared/data/weibo_counts.csv.gz")
	if err != nil {
		return syntheticRows(n)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	p := &engine.Page{Width: 4}
	id := uint64(1) << 50
	for i := range n {
		line := lines[1+r.IntN(len(lines)-1)]
		id += 1 + uint64(r.ExpFloat64()*5.2e6)
		p.IDs = append(p.IDs, id)
		for _, field := range line[2:5] {
			v, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				t.Fatalf("line %d: %v", i, err)
			}
			p.Counts = append(p.Counts, v)
		}
		p.Counts = append(p.Counts, 0)
	}
	return p
}

func syntheticRows(n int) *engine.Page {
	r := rand.New(rand.NewPCG(3, 4))
	p := &engine.Page{Width: 4}
	for i := range uint64(n) {
		p.IDs = append(p.IDs, i<<22|r.Uint64N(1<<22))
		for range p.Width {
			p.Counts = append(p.Counts, int64(1/(1-r.Float64())))
		}
	}
	return p
}

func FuzzOpenBlock(f *testing.F) {
	for _, p := range []*engine.Page{syntheticRows(200), {IDs: []uint64{0, 1<<64 - 1}, Width: 2, Counts: []int64{-1, 0, 0, 5}}} {
		b, _ := encodeBlock(nil, testName, p, 0)
		f.Add(b[4:], uint64(77))
	}
	f.Fuzz(func(t *testing.T, body []byte, id uint64) {
		b := append(make([]byte, 4), body...)
		if len(body) > 0 {
			crc := namedCRC(testName, b[4:])
			b[0], b[1], b[2], b[3] = byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24)
		}
		k, err := openBlock(testName, b)
		if err != nil {
			return
		}
		p := engine.Page{Width: engine.ColumnsMax}
		if err := k.appendTo(&p, 0, 1<<64-1); err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
		var row [engine.ColumnsMax]int64
		if err := k.get(id, row[:]); err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		}
	})
}

func BenchmarkBlock(b *testing.B) {
	p := weiboRows(b, 100_000)
	blocks := blocksOf(p)
	bytes := 0
	for _, k := range blocks {
		bytes += len(k)
	}
	b.Run("encode", func(b *testing.B) {
		for b.Loop() {
			blocksOf(p)
		}
		b.ReportMetric(float64(bytes)/float64(len(p.IDs)), "B/row")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(p.IDs)), "ns/row")
	})
	b.Run("get", func(b *testing.B) {
		k, err := openBlock(testName, blocks[3])
		if err != nil {
			b.Fatal(err)
		}
		var row [4]int64
		got := engine.Page{Width: 4}
		if err := k.appendTo(&got, 0, 1<<64-1); err != nil {
			b.Fatal(err)
		}
		i := 0
		for b.Loop() {
			if err := k.get(got.IDs[i%len(got.IDs)], row[:]); err != nil {
				b.Fatal(err)
			}
			i += 37
		}
	})
	b.Run("all", func(b *testing.B) {
		got := engine.Page{Width: 4}
		for b.Loop() {
			got.IDs, got.Counts = got.IDs[:0], got.Counts[:0]
			for _, raw := range blocks {
				k, err := openBlock(testName, raw)
				if err == nil {
					err = k.appendTo(&got, 0, 1<<64-1)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(p.IDs)), "ns/row")
	})
}
