package engine

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sealedStreams are ascending ids for the benchmarks of sealed rows. One stream has the density of
// the real ids, which are from several years. The other has that of a large service, whose ids are
// from a few hours.
var sealedStreams = []struct {
	name string
	ids  func() []uint64
}{
	{"years", func() []uint64 { ids := realIDs(benchRows); slices.Sort(ids); return ids }},
	{"800-a-second", func() []uint64 {
		r := rand.New(rand.NewPCG(7, 7))
		ids, id := make([]uint64, benchRows), uint64(3335128487)<<22
		for i := range ids {
			id += 1 + uint64(r.ExpFloat64()*float64(uint64(1)<<22)/800)
			ids[i] = id
		}
		return ids
	}},
}

// anonymousBytes returns the anonymous memory of the process after a garbage collection.
func anonymousBytes(b *testing.B) float64 {
	debug.FreeOSMemory()
	file, err := os.Open("/proc/self/smaps_rollup")
	if err != nil {
		b.Skip(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), "Anonymous:"); found {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib * 1024
		}
	}
	b.Skip("the system does not tell anonymous memory")
	return 0
}

// BenchmarkSealedSize reports the memory per row, first hot and then sealed, as measured and as
// Table.Stats reports it. It also reports how many rows one goroutine seals in a second. Run it
// with -benchtime 1x.
func BenchmarkSealedSize(b *testing.B) {
	for _, stream := range sealedStreams {
		b.Run(stream.name, func(b *testing.B) {
			ids := stream.ids()
			realCounts()
			for b.Loop() {
				before := anonymousBytes(b)
				tab := fill(ids)
				rows := float64(tab.Stats().Rows)
				b.ReportMetric((anonymousBytes(b)-before)/rows, "hot-B/row")
				b.ReportMetric(float64(tab.Stats().Bytes)/rows, "hot-accounted-B/row")
				sealAll(tab)
				began := time.Now()
				sealed := sealAll(tab)
				b.ReportMetric(float64(sealed)/time.Since(began).Seconds(), "sealed-rows/s")
				b.ReportMetric((anonymousBytes(b)-before)/rows, "sealed-B/row")
				st := tab.Stats()
				b.ReportMetric(float64(st.Bytes)/rows, "sealed-accounted-B/row")
				b.ReportMetric(float64(st.SealedBytes)/float64(st.SealedRows), "packed-B/row")
				b.ReportMetric(100-100*float64(st.SealedRows)/rows, "%-over")
				runtime.KeepAlive(tab)
			}
		})
	}
}

// BenchmarkSealedReads compares reads of sealed rows with reads of the same rows while they are
// hot. The ids are in random order. In the benchmarks with names in "Alone", each read waits for
// the previous one.
func BenchmarkSealedReads(b *testing.B) {
	for _, stream := range sealedStreams {
		ids := stream.ids()
		tab := fill(ids)
		mixed := slices.Clone(ids)
		rand.New(rand.NewPCG(5, 5)).Shuffle(len(ids), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		for _, state := range []string{"hot", "sealed"} {
			if state == "sealed" {
				sealAll(tab)
				sealAll(tab)
			}
			b.Run(fmt.Sprintf("%s/%s", stream.name, state), func(b *testing.B) { sealedReadsOf(b, tab, mixed) })
		}
	}
}

func sealedReadsOf(b *testing.B, tab *Table, ids []uint64) {
	row := make([]int64, 4)
	for _, f := range []struct {
		name string
		plus uint64
	}{{"Hit", 0}, {"Miss", 1}} {
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				tab.Get(ids[i%len(ids)]+f.plus, row)
			}
		})
		b.Run(f.name+"Alone", func(b *testing.B) {
			b.ReportAllocs()
			at := 0
			for range b.N {
				tab.Get(ids[at%len(ids)]+f.plus, row)
				at += 1 + int(row[1]>>62) // always adds 1, but makes the next read wait for row
			}
		})
	}
	const page = 20
	rows := make([]int64, page*4)
	b.Run("Page20", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; i < b.N; i += page {
			at := i % (len(ids) - page)
			tab.GetMany(ids[at:at+page], 4, rows, nil)
		}
	})
}

// BenchmarkSealedLoad compares loading a snapshot's rows into segments with loading them sealed.
func BenchmarkSealedLoad(b *testing.B) {
	for _, stream := range sealedStreams {
		var pages []*Page
		snap := fill(stream.ids()).Snapshot()
		if err := snap.Pages(func(p *Page) error {
			pages = append(pages, &Page{slices.Clone(p.IDs), p.Width, slices.Clone(p.Counts)})
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		snap.Close()
		for name, load := range map[string]func(*Table, *Page, *Sealer) error{
			"hot":    func(t *Table, p *Page, _ *Sealer) error { return t.Load(p) },
			"sealed": (*Table).LoadSealed,
		} {
			b.Run(stream.name+"/"+name, func(b *testing.B) {
				for b.Loop() {
					tab, with := newTableOf(testSecret, allIDs), new(Sealer)
					for _, p := range pages {
						if err := load(tab, p, with); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchRows, "ns/row")
			})
		}
	}
}

// BenchmarkSealedWrites measures increments of sealed rows, one op each. The second part measures
// increments of rows that these writes have copied into the segments. Run it with -benchtime
// 200000x.
func BenchmarkSealedWrites(b *testing.B) {
	ids := sealedStreams[0].ids()
	tab := fill(ids)
	sealAll(tab)
	sealAll(tab)
	rand.New(rand.NewPCG(5, 5)).Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	one := []Op{{Kind: OpAdd, Cells: []Cell{{1, 1}}}}
	row := make([]int64, 4)
	for _, name := range []string{"Sealed", "BroughtBack"} {
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				one[0].ID = ids[i%len(ids)]
				if _, err := tab.Apply(one, 4, row, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWritesDuringSealing measures how long batches of 256 writes wait while half of ten
// million rows is sealed without a pause. The writes are uniform over the newer half. It also
// measures them without sealing. Run it with -benchtime 1x.
func BenchmarkWritesDuringSealing(b *testing.B) {
	ids := sealedStreams[0].ids()
	tab := fill(ids)
	sealAll(tab)
	ids = ids[len(ids)/2:]
	for _, during := range []bool{false, true} {
		b.Run(fmt.Sprintf("sealing=%v", during), func(b *testing.B) {
			for range b.N {
				delays := writesWhile(tab, ids, func() {
					if !during {
						time.Sleep(2 * time.Second)
						return
					}
					sealAll(tab)
				})
				slices.Sort(delays)
				b.ReportMetric(float64(delays[len(delays)/2].Microseconds())/1e3, "p50-ms")
				b.ReportMetric(float64(delays[len(delays)*999/1000].Microseconds())/1e3, "p99.9-ms")
				b.ReportMetric(float64(delays[len(delays)-1].Microseconds())/1e3, "max-ms")
				b.ReportMetric(float64(len(delays)), "batches")
			}
		})
	}
}

// writesWhile applies batches while task runs, and returns how long each batch took.
func writesWhile(tab *Table, ids []uint64, task func()) []time.Duration {
	done := make(chan struct{})
	go func() { // closes done when task returns
		defer close(done)
		task()
	}()
	r := rand.New(rand.NewPCG(6, 6))
	ops := make([]Op, 256)
	var delays []time.Duration
	for {
		select {
		case <-done:
			return delays
		default:
		}
		for i := range ops {
			ops[i] = Op{ID: ids[r.IntN(len(ids))], Kind: OpAdd, Cells: []Cell{{1, 1}}}
		}
		start := time.Now()
		tab.Apply(ops, 0, nil, nil)
		delays = append(delays, time.Since(start))
	}
}
