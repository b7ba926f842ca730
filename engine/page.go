package engine

import "slices"

// Page is a set of rows in ascending id order. Row i has Width counts, beginning at
// Counts[i*Width]. Only the Page of a Part may have rows of zeros.
type Page struct {
	IDs    []uint64
	Width  int
	Counts []int64
}

// Row returns the counts of row i.
func (p *Page) Row(i int) []int64 { return p.Counts[i*p.Width : (i+1)*p.Width] }

// pieces splits the page into as few pages as possible, of about equal size and at most rowsMax
// rows each. It returns none for an empty page.
func (p *Page) pieces() []*Page {
	pieces := make([]*Page, (len(p.IDs)+rowsMax-1)/rowsMax)
	for i := range pieces {
		from, to := len(p.IDs)*i/len(pieces), len(p.IDs)*(i+1)/len(pieces)
		pieces[i] = p.slice(from, to)
	}
	return pieces
}

// slice returns a page of the rows from … to-1, which shares memory with p.
func (p *Page) slice(from, to int) *Page {
	return &Page{p.IDs[from:to], p.Width, p.Counts[from*p.Width : to*p.Width]}
}

// Widen adds columns of zeros to all rows, unless they have width columns already.
func (p *Page) Widen(width int) {
	if p.Width >= width {
		return
	}
	counts := make([]int64, len(p.IDs)*width)
	for i := range p.IDs {
		copy(counts[i*width:], p.Row(i))
	}
	p.Width, p.Counts = width, counts
}

func (p *Page) clear(width int) {
	p.IDs, p.Width, p.Counts = p.IDs[:0], width, p.Counts[:0]
}

func (p *Page) add(id uint64, row []int64) {
	p.IDs = append(p.IDs, id)
	p.Counts = append(p.Counts, row...)
}

// Merge sets p to the rows of newer and of older. If both have a row of an id, p gets that of
// newer. p gets no rows of zeros. newer and older must have the same width, and neither may be p.
func (p *Page) Merge(newer, older *Page) {
	p.clear(newer.Width)
	add := func(from *Page, i int) {
		if row := from.Row(i); !isZeroRow(row) {
			p.add(from.IDs[i], row)
		}
	}
	j := 0
	for i, id := range newer.IDs {
		for ; j < len(older.IDs) && older.IDs[j] < id; j++ {
			add(older, j)
		}
		if j < len(older.IDs) && older.IDs[j] == id {
			j++
		}
		add(newer, i)
	}
	for ; j < len(older.IDs); j++ {
		add(older, j)
	}
}

func isZeroRow(row []int64) bool {
	return !slices.ContainsFunc(row, func(v int64) bool { return v != 0 })
}
