package counters

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/csv"
	"flag"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
)

var (
	tierRows   = flag.Int("tier-rows", 1_000_000, "rows of BenchmarkTiers")
	tierCounts = flag.String("tier-counts", "../../shared/data/weibo_counts.csv.gz", "counts of real posts for BenchmarkTiers")
)

// BenchmarkTiers fills four shards with rows of realistic counts, whose ids ascend at 800 posts a
// second. It moves the rows to disk and reports the memory and disk space per row. Run it with
// -benchtime 1x: the memory per row is the growth of the whole process.
func BenchmarkTiers(b *testing.B) {
	contents := realCounts(b)
	for b.Loop() {
		store, err := cold.Open(cold.Config{Dir: filepath.Join(b.TempDir(), "cold"), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { b.Error(err) }})
		if err != nil {
			b.Fatal(err)
		}
		var shards []*Machine
		for g := range uint32(4) {
			rows, err := store.Group(g)
			if err != nil {
				b.Fatal(err)
			}
			shards = append(shards, New(raftfsm.Places{Cold: rows}))
		}
		before := anonymousBytes(b)
		ids := fillTiers(b, shards, contents)
		perRow := func(bytes uint64) float64 { return float64(bytes) / float64(*tierRows) }
		b.ReportMetric(perRow(anonymousBytes(b)-before), "hot-B/row")

		began, frozen := time.Now(), 0
		for _, c := range shards {
			for range 2 {
				n, err := freezeAll(c, func(uint64, uint64) bool { return true })
				if err != nil {
					b.Fatal(err)
				}
				frozen += n
			}
		}
		b.ReportMetric(float64(frozen)/time.Since(began).Seconds(), "frozen-rows/s")
		b.ReportMetric(perRow(anonymousBytes(b)-before), "cold-B/row")
		known, disk := uint64(0), uint64(0)
		for _, c := range shards {
			s := c.State()
			known, disk = known+s.Bytes, disk+s.ColdBytes
		}
		b.ReportMetric(perRow(known), "cold-index-B/row")
		b.ReportMetric(perRow(disk), "disk-B/row")
		b.ReportMetric(perRow(store.DiskBytes()), "disk-files-B/row")
		readTiers(b, shards, ids)
		if err := store.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// readTiers reads rows one by one: first from disk, and then again from cached blocks.
func readTiers(b *testing.B, shards []*Machine, ids []uint64) {
	row := make([]int64, 4)
	for _, unit := range []string{"read", "warm-read"} {
		var took []time.Duration
		for i, id := range ids[:min(len(ids), 2000)] {
			began := time.Now()
			if err := shards[i%4].Table().ReadCold(context.Background(), id, row); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, unit+"-p50-us")
		b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, unit+"-p99-us")
	}
}

// fillTiers adds rows in the order of their ids, and returns some of their keys. Key i of the
// result is in shard i%4. Keys of one segment are not adjacent.
func fillTiers(b *testing.B, shards []*Machine, contents [][3]int64) []uint64 {
	r := rand.New(rand.NewPCG(1, 2))
	var some []uint64
	id := uint64(3335128487) << 22
	var ops [4][]engine.Op
	var cells [4][]engine.Cell // of ops
	for i := range *tierRows {
		id += 1 + uint64(r.ExpFloat64()*float64(uint64(1)<<22)/800)
		s := id % 4
		from := len(cells[s])
		for column, v := range contents[r.IntN(len(contents))] {
			if v != 0 {
				cells[s] = append(cells[s], engine.Cell{Column: uint8(column), Value: v})
			}
		}
		if len(cells[s]) == from {
			cells[s] = append(cells[s], engine.Cell{Column: 3, Value: 1})
		}
		op := engine.Op{ID: id / 4, Kind: engine.OpSet, Cells: cells[s][from:]}
		if r.IntN(*tierRows/8000+1) == 0 && int(s) == len(some)%4 {
			some = append(some, op.ID)
		}
		if ops[s] = append(ops[s], op); len(ops[s]) == 5000 || i == *tierRows-1 {
			for s := range ops {
				if _, err := shards[s].Table().Apply(ops[s], 0, nil, nil); err != nil {
					b.Fatal(err)
				}
				ops[s], cells[s] = ops[s][:0], cells[s][:0]
			}
		}
	}
	for i := len(some)/4 - 1; i > 0; i-- { // shuffle the keys of each shard
		j := r.IntN(i + 1)
		for s := range 4 {
			some[4*i+s], some[4*j+s] = some[4*j+s], some[4*i+s]
		}
	}
	return some
}

func realCounts(b *testing.B) [][3]int64 {
	file, err := os.Open(*tierCounts)
	if err != nil {
		b.Skip(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		b.Fatal(err)
	}
	lines, err := csv.NewReader(unzipped).ReadAll()
	if err != nil {
		b.Fatal(err)
	}
	contents := make([][3]int64, len(lines)-1)
	for i, line := range lines[1:] {
		for column := range contents[i] {
			if contents[i][column], err = strconv.ParseInt(line[2+column], 10, 64); err != nil {
				b.Fatal(err)
			}
		}
	}
	return contents
}

// anonymousBytes returns the anonymous memory of the process after garbage collections.
func anonymousBytes(b *testing.B) uint64 {
	debug.FreeOSMemory()
	debug.FreeOSMemory() // only the second collection frees what pools keep
	file, err := os.Open("/proc/self/smaps_rollup")
	if err != nil {
		b.Skip(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), "Anonymous:"); found {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib << 10
		}
	}
	b.Skip("the system does not tell anonymous memory")
	return 0
}
