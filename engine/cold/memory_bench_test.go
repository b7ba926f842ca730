package cold

import (
	"compress/gzip"
	"encoding/csv"
	"math/rand/v2"
	"os"
	"sort"
	"strconv"
	"testing"

	"github.com/countd/countd/engine"
)

// BenchmarkBlocksInMemory measures size and read speed of old rows as blocks of the disk format in
// memory, without verifying checksums. Compare it with engine.BenchmarkSealedReads. Ids have the
// density of Weibo's, and counts are those of real posts.
func BenchmarkBlocksInMemory(b *testing.B) {
	for _, stream := range []struct {
		name   string
		second float64
	}{{"years", 0.05}, {"800-a-second", 800}} {
		b.Run(stream.name, func(b *testing.B) {
			blocks, firsts, ids := blocksInMemory(b, stream.second, 10_000_000)
			total := 0
			for _, block := range blocks {
				total += len(block) + 8 + 24
			}
			row := make([]int64, 4)
			b.ReportAllocs()
			for b.Loop() {
				id := ids[rand.N(len(ids))]
				k, err := takeApart(blocks[sort.Search(len(firsts), func(i int) bool { return firsts[i] > id })-1])
				if err != nil {
					b.Fatal(err)
				}
				if err := k.get(id, row); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(total)/float64(len(ids)), "B/row")
		})
	}
}

func blocksInMemory(b *testing.B, second float64, rows int) (blocks [][]byte, firsts, ids []uint64) {
	counts := countsOfPosts(b)
	r := rand.New(rand.NewPCG(7, 7))
	p := &engine.Page{Width: 4, IDs: make([]uint64, rows), Counts: make([]int64, 4*rows)}
	id := uint64(3335128487) << 22
	for i := range p.IDs {
		id += 1 + uint64(r.ExpFloat64()*float64(uint64(1)<<22)/second)
		p.IDs[i] = id
		copy(p.Row(i), counts[r.IntN(len(counts))][:])
	}
	for from := 0; from < rows; {
		block, next := encodeBlock(nil, nil, p, from)
		blocks, firsts = append(blocks, append([]byte(nil), block...)), append(firsts, p.IDs[from])
		from = next
	}
	return blocks, firsts, p.IDs
}

// countsOfPosts returns the reposts, comments and likes of those real posts that have any.
func countsOfPosts(b *testing.B) [][3]int64 {
	file, err := os.Open("../../../shared/data/weibo_counts.csv.gz")
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
	var counts [][3]int64
	for _, line := range lines[1:] {
		var row [3]int64
		for column := range row {
			if row[column], err = strconv.ParseInt(line[2+column], 10, 64); err != nil {
				b.Fatal(err)
			}
		}
		if row != [3]int64{} {
			counts = append(counts, row)
		}
	}
	return counts
}
