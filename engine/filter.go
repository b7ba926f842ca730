package engine

import "github.com/countd/countd/internal/wire"

// Filter selects ids by their residue or, if Hashed is set, by that of wire.MixID of the id. The zero
// Filter selects all ids.
type Filter struct {
	Modulus, Residue uint32
	Hashed           bool
}

// Has reports whether the filter selects an id.
func (f Filter) Has(id uint64) bool {
	if f.Modulus == 0 {
		return true
	}
	if f.Hashed {
		id = wire.MixID(id)
	}
	return id%uint64(f.Modulus) == uint64(f.Residue)
}

// Filter removes the rows from index n on whose ids f does not select.
func (p *Page) Filter(n int, f Filter) {
	if f.Modulus == 0 {
		return
	}
	kept := n
	for i := n; i < len(p.IDs); i++ {
		if f.Has(p.IDs[i]) {
			p.IDs[kept] = p.IDs[i]
			copy(p.Counts[kept*p.Width:], p.Row(i))
			kept++
		}
	}
	p.IDs, p.Counts = p.IDs[:kept], p.Counts[:kept*p.Width]
}
