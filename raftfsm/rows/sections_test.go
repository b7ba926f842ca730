package rows

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/codec"
)

// Sections writes a page that is larger than a section as several sections, which load as the same
// rows.
func TestLongPagesAreSplit(t *testing.T) {
	page := &engine.Page{Width: 2}
	for i := range uint64(2*sectionRowsMax + 1) {
		page.IDs = append(page.IDs, i*3)
		page.Counts = append(page.Counts, int64(i), -1)
	}
	table := engine.New()
	var got engine.Page
	sizes := []int{}
	for from := 0; from < len(page.IDs); from += sectionRowsMax {
		to := min(from+sectionRowsMax, len(page.IDs))
		if err := ParseRows(AppendRows(nil, page, from, to), &got, false); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(got.IDs))
		if !slices.Equal(got.IDs, page.IDs[from:to]) || !slices.Equal(got.Counts, page.Counts[from*2:to*2]) {
			t.Fatalf("rows %d…%d came back otherwise", from, to-1)
		}
		if err := table.Load(&got); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(sizes, []int{sectionRowsMax, sectionRowsMax, 1}) || table.Stats().Rows != uint64(len(page.IDs)) {
		t.Errorf("sections of %v rows, %d in the table", sizes, table.Stats().Rows)
	}
	if err := ParseRows(AppendRows(nil, page, 0, sectionRowsMax+1), &got, false); !errors.Is(err, codec.ErrSnapshot) {
		t.Errorf("a section beyond the bound: %v", err)
	}
}

// A row that is added changes few sections, although it moves all rows that follow.
func TestAnAddedRowChangesFewSections(t *testing.T) {
	written := func(without int) map[string]bool {
		var b bytes.Buffer
		rows := Sections{W: codec.NewStreamWriter(&b), Kind: codec.StreamRows}
		for i := range 100_000 {
			if i == without {
				continue
			}
			if err := rows.Add(&engine.Page{IDs: []uint64{uint64(i) * 3}, Width: 1, Counts: []int64{int64(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(rows.Flush(), rows.W.End(0, 0)); err != nil {
			t.Fatal(err)
		}
		sections := map[string]bool{}
		for _, section := range rafttest.SectionsOf(t, b.Bytes()) {
			if section[0] != codec.StreamRows {
				continue
			}
			if n := binary.LittleEndian.Uint32(rafttest.PayloadOf(section)[1:]); n > sectionRows {
				t.Fatalf("a section has %d rows", n)
			}
			sections[string(section)] = true
		}
		return sections
	}
	whole, other, shared := written(-1), written(20_000), 0
	for section := range other {
		if whole[section] {
			shared++
		}
	}
	if len(whole) < 10 || len(other)-shared > 2 {
		t.Errorf("%d of %d sections are shared", shared, len(other))
	}
}

func TestWidestRowsFitASection(t *testing.T) {
	page := &engine.Page{Width: engine.ColumnsMax}
	for i := range uint64(1000) {
		page.IDs = append(page.IDs, 1<<63+i<<50)
		for range engine.ColumnsMax {
			page.Counts = append(page.Counts, -1<<63)
		}
	}
	if most := len(AppendRows(nil, page, 0, 1000)) * sectionRowsMax / 1000; most > codec.PayloadMax {
		t.Errorf("a section may have %d bytes, a reader takes %d", most, codec.PayloadMax)
	}
}

func FuzzParseRows(f *testing.F) {
	f.Add(AppendRows(nil, &engine.Page{IDs: []uint64{1, 5, 1<<64 - 1}, Width: 2, Counts: []int64{1, 0, 0, -1 << 63, 3, 4}}, 0, 3))
	f.Add([]byte("\x40\xff\xff\xff\xff"))
	f.Add([]byte("\x04\x01\x00\x00\x00\x01\x00"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		var page engine.Page
		err := ParseRows(payload, &page, false)
		if len(page.IDs) > len(payload)/3+1 || len(page.Counts) > len(page.IDs)*engine.ColumnsMax {
			t.Fatalf("%d ids and %d counts of %d bytes", len(page.IDs), len(page.Counts), len(payload))
		}
		if err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		again := AppendRows(nil, &page, 0, len(page.IDs))
		if len(again) > len(payload) || len(again) == len(payload) && !bytes.Equal(again, payload) {
			t.Fatalf("% x was taken for % x", payload, again)
		}
		table := engine.New()
		if err := table.Load(&page); err != nil {
			t.Fatal(err) // never fails: ParseRows has checked that the rows ascend
		}
		if err := rafttest.CheckTable(table); err != nil {
			t.Fatal(err)
		}
	})
}
