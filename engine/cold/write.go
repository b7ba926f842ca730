package cold

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/engine"
)

// Write implements engine.Cold. All pages become durable with one sync.
func (g *Group) Write(pages []*engine.Page) ([]engine.Generation, error) {
	made, err := g.write(pages)
	if err != nil {
		return nil, err
	}
	generations := make([]engine.Generation, len(made))
	for i, n := range made {
		generations[i] = n
		if err := n.verify(pages[i]); err != nil {
			for _, n := range made {
				n.Release()
			}
			return nil, err
		}
	}
	return generations, nil
}

// write writes each page as a generation with one reference.
func (g *Group) write(pages []*engine.Page) ([]*Generation, error) {
	done, err := g.store.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	if !g.store.hasRoom() {
		return nil, ErrFull
	}
	batch := g.store.db.NewBatch()
	defer batch.Close()
	made := make([]*Generation, len(pages))
	for i, p := range pages {
		made[i] = g.newGeneration()
		if err := made[i].addTo(batch, p); err != nil {
			return nil, fmt.Errorf("cannot write cold rows: %w", err)
		}
	}
	if err := g.store.commit(batch, pebble.Sync); err != nil {
		return nil, fmt.Errorf("cannot write cold rows: %w", err)
	}
	g.opened(made)
	return made, nil
}

// addTo encodes the rows of p as blocks of the generation. It fills the generation's index, and
// adds blocks and index to batch.
func (n *Generation) addTo(batch *pebble.Batch, p *engine.Page) error {
	x := &n.index
	x.rows, x.last = len(p.IDs), p.IDs[len(p.IDs)-1]
	var b []byte
	for from := 0; from < len(p.IDs); {
		key := n.blockKey(len(x.firsts)).encode()
		x.firsts = append(x.firsts, p.IDs[from])
		b, from = encodeBlock(b[:0], key, p, from)
		x.sizes, x.sums = append(x.sizes, uint16(len(b))), append(x.sums, binary.LittleEndian.Uint32(b))
		x.width = max(x.width, int(b[5]))
		if err := batch.Set(key, b, nil); err != nil {
			return err
		}
	}
	if err := checkIndex(len(x.firsts), x.width, uint64(x.rows)); err != nil {
		return err
	}
	x.firsts, x.sizes, x.sums = slices.Clip(x.firsts), slices.Clip(x.sizes), slices.Clip(x.sums)
	key := generationKey(keyGeneration, n.group.number, n.number)
	value := x.appendTo(nil, key)
	x.sum = binary.LittleEndian.Uint32(value[len(value)-entryCRCBytes:])
	return batch.Set(key, value, nil)
}

// verify reads the generation back and compares it with the rows that were written.
func (n *Generation) verify(want *engine.Page) error {
	got := engine.Page{Width: want.Width}
	if err := n.Load(0, 1<<64-1, &got); err != nil {
		return fmt.Errorf("cannot read cold rows back: %w", err)
	}
	if !slices.Equal(got.IDs, want.IDs) || !slices.Equal(got.Counts, want.Counts) {
		return fmt.Errorf("%w: they differ from what was written when read back", ErrDamaged)
	}
	return nil
}
