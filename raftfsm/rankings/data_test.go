package rankings

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/countd/countd/internal/must"
)

// read returns the rows of a packed file, or nil if the file does not exist.
func read(t *testing.T, path string) [][]string {
	t.Helper()
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not there", path)
	}
	must.Do(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	must.Do(t, err)
	rows, err := csv.NewReader(z).ReadAll()
	must.Do(t, err)
	return rows[1:]
}

// Within an hour, the lists count real streams of likes and retweets, and a Zipf stream of a
// million increments. Every few minutes, the lists are written to a snapshot and loaded again. The
// top 100 of the hour must be within the stated errors, and the errors must be small.
func TestTop100OfAnHour(t *testing.T) {
	t.Parallel()
	number := func(text string) uint64 {
		n, err := strconv.ParseUint(text, 10, 64)
		must.Do(t, err)
		return n
	}
	for _, test := range []struct {
		name   string
		deltas func(t *testing.T) []change
	}{
		{"weibo", func(t *testing.T) (all []change) {
			for _, row := range read(t, "../../demo/posts.csv.gz") { // the file has counts; apply them in steps of up to 1,000
				for left := int64(number(row[4])); left > 0; left -= 1000 {
					all = append(all, change{number(row[0]), min(left, 1000), 2})
				}
			}
			return all
		}},
		{"twitter", func(t *testing.T) (all []change) {
			for _, row := range read(t, "../../../shared/data/higgs_events.csv.gz") { // beside the repository
				all = append(all, change{number(row[0]), 1, uint8(len(row[2]) % 3)})
			}
			return all
		}},
		{"zipf", func(*testing.T) (all []change) {
			zipf := rand.NewZipf(rand.New(rand.NewPCG(3, 4)), 1.1, 8, 2_000_000)
			for range 1_000_000 {
				all = append(all, change{zipf.Uint64() * 977, 1, 2})
			}
			return all
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := test.deltas(t)
			rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) {
				if test.name == "weibo" { // the other data sets have the order of the events
					all[i], all[j] = all[j], all[i]
				}
			})
			const hour, begin = int64(3_600_000), int64(1_700_002_800_000)
			f, exact := NewHotLists(), map[uint8]map[uint64]int64{}
			for i, c := range all {
				f.Begin(begin + hour*int64(i)/int64(len(all)))
				f.Add(c.key, c.column, c.delta)
				f.End()
				if exact[c.column] == nil {
					exact[c.column] = map[uint64]int64{}
				}
				exact[c.column][c.key] += c.delta
				if i%(len(all)/17) == 0 {
					p := section(f)
					f = NewHotLists()
					must.Do(t, f.Load(p))
				}
			}
			for column, gains := range exact {
				h := f.Hottest(Hour, column, begin+hour-1, 100)
				must.Do(t, check(h, gains, 100))
				worst := 0.0
				for _, g := range h.Gains {
					worst = max(worst, float64(g.Error)/float64(g.Gained))
				}
				t.Logf("column %d: %d ids, the first gained %d, the hundredth %d; others at most %d; the largest error is %.1f %% of its gain",
					column, len(gains), h.Gains[0].Gained, h.Gains[len(h.Gains)-1].Gained, h.OthersAtMost(100), 100*worst)
				if worst > 0.1 {
					t.Errorf("column %d: an error of %.0f %%", column, 100*worst)
				}
			}
		})
	}
}
