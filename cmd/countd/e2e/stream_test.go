package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

const (
	higgsSet      = "../../../../shared/data/higgs_events.csv.gz" // outside the repository; may be missing
	streamShort   = 60_000                                        // number of events that are used unless whole is set
	streamWhole   = 560_000                                       // number of events that are made up if the file is missing
	eventsToPosts = "retweet=repost,mention=comment,reply=like"
)

// stream is a file of events with the columns item, t and event, and its expected counts.
type stream struct {
	file   string
	events int
	counts map[uint64]rowCounts // expected counts, by item
	seen   []uint64             // seen[i] is the number of different items in the first i events
}

// higgs returns the events about one discovery on Twitter, or made-up events if the file is
// missing. Unless whole is set, it returns only the first streamShort of them.
func higgs(t *testing.T, whole bool) *stream {
	t.Helper()
	records := higgsRecords(t, streamShort, whole)
	s := &stream{file: filepath.Join(t.TempDir(), "events.csv.gz"), events: len(records), counts: map[uint64]rowCounts{}, seen: []uint64{0}}
	for _, r := range records {
		s.count(t, r[0], r[2])
	}
	s.write(t, records)
	return s
}

// higgsRecords returns the events of higgs as records of item, t and event. Unless whole is set, it
// returns only the first n of them.
func higgsRecords(t *testing.T, n int, whole bool) [][]string {
	t.Helper()
	records, there := recordsOf(t, higgsSet)
	if !there {
		records = madeUpEvents(streamWhole)
	}
	if !whole {
		records = records[:min(n, len(records))]
	}
	return records
}

// recordsOf returns the rows of a compressed CSV file of real data. there is false if the file is
// missing.
func recordsOf(t *testing.T, path string) (records [][]string, there bool) {
	t.Helper()
	packed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		t.Logf("%s is not there: what it holds is made up", path)
		return nil, false
	}
	if err != nil {
		t.Fatal(err)
	}
	if records, err = csv.NewReader(bytes.NewReader(unpack(t, packed))).ReadAll(); err != nil {
		t.Fatal(err)
	}
	return records[1:], true
}

func (s *stream) count(t *testing.T, item, event string) {
	t.Helper()
	id, err := strconv.ParseUint(item, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	c := s.counts[id]
	switch event {
	case "retweet":
		c[0]++
	case "mention":
		c[1]++
	case "reply":
		c[2]++
	default:
		t.Fatalf("event %q", event)
	}
	s.counts[id] = c
	s.seen = append(s.seen, uint64(len(s.counts)))
}

func (s *stream) write(t *testing.T, records [][]string) {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := csv.NewWriter(z)
	_ = w.Write([]string{"item", "t", "event"})
	if err := w.WriteAll(records); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.file, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// madeUpEvents returns n events ordered by time. Most of the events belong to a few items.
func madeUpEvents(n int) [][]string {
	r := rand.New(rand.NewPCG(7, 4))
	items := rand.NewZipf(r, 1.1, 8, 400_000)
	records := make([][]string, n)
	for i := range records {
		event := []string{"retweet", "retweet", "mention", "reply"}[r.IntN(4)]
		records[i] = []string{strconv.FormatUint(items.Uint64(), 10), strconv.Itoa(i), event}
	}
	return records
}
