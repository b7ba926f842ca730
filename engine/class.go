package engine

import (
	"fmt"
	"math"
)

// Class is the set of ids that are Residue mod Stride. A table of one class stores the numbers
// (id − Residue) / Stride in its arrays. So gaps between its ids take no memory. Everywhere else ids
// keep their form.
type Class struct {
	Stride  uint16 // at least 1
	Residue uint64 // below Stride
}

// allIDs is the class of all ids.
var allIDs = Class{Stride: 1}

// ClassOf returns the class of ids that are residue mod stride or, if the stride does not fit the
// arrays, the class of all ids. stride must not be 0.
func ClassOf(stride, residue uint64) Class {
	if stride > math.MaxUint16 {
		return allIDs
	}
	return Class{Stride: uint16(stride), Residue: residue % stride}
}

// Has reports whether an id is in the class.
func (c Class) Has(id uint64) bool { return id%uint64(c.Stride) == c.Residue }

// floor returns the last id of the class up to id or, if there is none, its first id.
func (c Class) floor(id uint64) uint64 {
	if id < c.Residue {
		return c.Residue
	}
	return id - (id-c.Residue)%uint64(c.Stride)
}

// check returns an error if an id of a page is not in the class: the row would have the place of
// another row.
func (c Class) check(p *Page) error {
	if c.Stride == 1 {
		return nil
	}
	for _, id := range p.IDs {
		if !c.Has(id) {
			return fmt.Errorf("cannot load page: id %d is not %d mod %d", id, c.Residue, c.Stride)
		}
	}
	return nil
}
