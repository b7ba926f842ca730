package bulk

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/client"
)

// The lanes acknowledge their batches in any order. These properties hold:
//
//  1. every row up to the watermark's line is acknowledged or rejected;
//  2. the watermark's Rows is the number of acknowledged rows up to its line, and Rejected the
//     number of rejected ones;
//  3. the watermark never falls;
//  4. at the end the watermark is the last line.
func TestWatermark(t *testing.T) {
	const lanes, lines, batchMax = 4, 5000, 20
	random := rand.New(rand.NewPCG(3, 4))
	mark := newWatermark(lanes, Position{Line: 1})
	open := make([][][]int64, lanes) // lines of each unacknowledged batch; the last batch may not be full yet
	done := map[int64]bool{1: true}
	rows := map[int64]bool{}
	last := Position{Line: 1}
	check := func() {
		t.Helper()
		p := mark.position()
		if p.Line < last.Line {
			t.Fatalf("the watermark fell from %v to %v", last, p)
		}
		for line := last.Line; line <= p.Line; line++ {
			if !done[line] {
				t.Fatalf("line %d is open, the watermark is %v", line, p)
			}
			if line == last.Line {
				continue
			}
			if rows[line] {
				last.Rows++
			} else {
				last.Rejected++
			}
		}
		if last.Line = p.Line; p != last {
			t.Fatalf("the watermark is %v, want %v", p, last)
		}
	}
	ack := func(lane int) {
		for _, line := range open[lane][0] {
			done[line] = true
		}
		open[lane] = open[lane][1:]
		mark.acked(lane)
	}
	for line := int64(2); line <= lines; line++ {
		lane := random.IntN(lanes)
		if random.IntN(10) == 0 {
			done[line] = true
			mark.passed(line)
			check()
			continue
		}
		n := len(open[lane])
		fresh := n == 0 || len(open[lane][n-1]) == batchMax
		if fresh {
			open[lane] = append(open[lane], nil)
			n++
		}
		mark.taken(lane, fresh, line)
		open[lane][n-1] = append(open[lane][n-1], line)
		rows[line] = true
		if lane = random.IntN(lanes); len(open[lane]) > 1 && random.IntN(batchMax) == 0 {
			ack(lane)
		}
		check()
	}
	for lane := range open {
		for len(open[lane]) > 0 {
			ack(lane)
			check()
		}
	}
	if last.Line != lines || last.Rows != int64(len(rows)) {
		t.Fatalf("the watermark ends at %v", last)
	}
}

func TestLanesAreEven(t *testing.T) {
	const lanes, n = 8, 80_000
	for name, step := range map[string]uint64{"in a row": 1, "by lanes": lanes, "by 2^22": 1 << 22, "by 2^32": 1 << 32} {
		t.Run(name, func(t *testing.T) {
			var rows [lanes]int
			for i := range uint64(n) {
				rows[laneOf(client.Number(i*step), lanes)]++
			}
			for lane, got := range rows {
				if got < n/lanes*9/10 || got > n/lanes*11/10 {
					t.Errorf("lane %d has %d of %d rows", lane, got, n)
				}
			}
		})
	}
}

func TestRejectedThrough(t *testing.T) {
	const text = "line,reason,id\n2,bad,x\n5,bad,\"a\nb\"\n9,bad,y\n"
	cases := []struct {
		name, text string
		through    int64
		start      int64 // number of bytes that are kept
	}{
		{"all", text, 9, int64(len(text))},
		{"some", text, 8, int64(len(text) - len("9,bad,y\n"))},
		{"none", text, 1, int64(len("line,reason,id\n"))},
		{"torn", text + `12,"to`, 20, int64(len(text))},
		{"foreign", "line,reason,id\nx,y,z\n", 20, int64(len("line,reason,id\n"))},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rejects.csv")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			in, err := NewCSVStream("f", strings.NewReader("id\n"), ',')
			if err != nil {
				t.Fatal(err)
			}
			r, err := openRejects(path, in, c.through)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.add(&RowError{Line: 30, Reason: "why"}, []byte(`q"`)); err != nil {
				t.Fatal(err)
			}
			if err := r.close(); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if want := c.text[:c.start] + "30,why,\"q\"\"\"\n"; err != nil || string(got) != want {
				t.Fatalf("the file holds %q, %v; want %q", got, err, want)
			}
		})
	}
}

func FuzzDecodeState(f *testing.F) {
	text, _ := json.Marshal(FileState{Version: fileStateVersion, Columns: []Column{{"a", "b"}}, Position: Position{5, 3, 1}})
	f.Add(text)
	f.Add([]byte(`{"version":1,"position":{"line":1,"rows":2}}`))
	f.Add([]byte(`{"version":1,"input":{"mod_time":"x"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := decodeFileState(text)
		if err != nil {
			return
		}
		if s.Position.Rows > s.Position.Line || s.Position.Rows < 0 || s.Position.Rejected < 0 {
			t.Fatalf("the position is %v", s.Position)
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Skip(fmt.Sprint("a time that JSON cannot write: ", err))
		}
		if back, err := decodeFileState(again); err != nil || !s.SameImport(back) || back.Position != s.Position {
			t.Fatalf("%s was read back as %+v, %v", again, back, err)
		}
	})
}
