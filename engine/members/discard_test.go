package members

import (
	"testing"
)

// shatter damages the file of a damagedDisk in more places, so that several groups are damaged.
func (d *damagedDisk) shatter() {
	d.Helper()
	for part := int64(1); part < 10; part += 2 {
		d.reopen(func() { flip(d.T, d.fs, d.store.cfg.Dir, part) })
	}
	_ = d.store.db.Compact(d.Context(), []byte{0}, []byte{0xff}, false) // finds the damage
}

// repairAll replaces sets until those of all groups can be read.
func (d *damagedDisk) repairAll() {
	d.Helper()
	for range 10 {
		broken := 0
		for i, g := range d.groups {
			if g.Verify() != nil {
				broken++
				d.repair(i)
			}
		}
		if broken == 0 {
			if n := d.readable(); n != 3*damagedRows {
				d.Errorf("%d sets can be read", n)
			}
			return
		}
	}
	d.Error("the sets are damaged again and again")
}

// Sets that are loaded while a damaged file is removed for another group keep all pairs.
func TestDiscardBesideLoads(t *testing.T) {
	for part := int64(0); part < 6; part += 2 {
		d := damagedDiskOf(t, part)
		d.shatter()
		loads := make([]*Load, len(d.groups))
		for i, g := range d.groups {
			var err error
			if loads[i], err = g.Load(); err != nil {
				t.Fatal(err)
			}
			for _, b := range d.blocks[i] {
				if err := loads[i].Block(b); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range d.groups {
			if err := loads[i].Switch(d.states[i]); err != nil {
				t.Fatal(err)
			}
		}
		d.readable() // no set with some of its members alone
		d.repairAll()
		d.close()
	}
}
