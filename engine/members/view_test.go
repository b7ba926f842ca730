package members

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/countd/countd/internal/scarce"
)

// ReleaseViews releases no views while somebody holds them. A kept view shows the sets as they were
// when it was captured.
func TestHeldViews(t *testing.T) {
	d := diskOf(t)
	capture := func() State {
		d.give(op{kind: 'j', pair: Pair{Member: d.index}})
		if err := d.group.Capture(); err != nil {
			t.Fatal(err)
		}
		return d.at
	}
	shows := func(named State) State {
		v, err := d.group.OpenView(named)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		return v.State()
	}
	one, other := d.group.HoldViews(), d.group.HoldViews()
	replaced := capture()
	kept := []State{capture(), capture()}
	d.give(op{kind: 'j', pair: Pair{Member: d.index}})
	one()
	d.group.ReleaseViews(time.Now())
	for _, named := range kept {
		if at := shows(named); at != named {
			t.Errorf("the view of entry %d shows %+v", named.Index, at)
		}
	}
	other()
	for _, named := range append(kept, replaced) {
		d.group.ReleaseViews(time.Now())
		if at := shows(named); at != d.at {
			t.Errorf("without its view, entry %d shows %+v, want the present %+v", named.Index, at, d.at)
		}
	}
}

// If Trim removed the first outcomes that a view needs, OpenView returns ErrMovedOn. Any other gap
// is damage.
func TestViewsWithoutOutcomes(t *testing.T) {
	for name, tc := range map[string]struct {
		trimmed uint64   // Trim is called with this entry
		gone    []uint64 // outcomes that are lost
		want    error    // error of OpenView for the snapshot of entry 2
	}{
		"all are there":                     {},
		"those of the snapshot are trimmed": {trimmed: 2},
		"the first is trimmed":              {trimmed: 3, want: ErrMovedOn},
		"all are trimmed":                   {trimmed: 5, want: ErrMovedOn},
		"one in between is lost":            {gone: []uint64{4}, want: ErrDamaged},
		"the last is lost":                  {gone: []uint64{5}, want: ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			d := diskOf(t)
			var after []State
			for m := range uint64(5) {
				d.give(op{kind: 'j', pair: Pair{Member: m}})
				after = append(after, d.at)
			}
			err := d.group.Trim(tc.trimmed)
			for _, index := range tc.gone {
				err = errors.Join(err, d.store.db.Delete(full(d.group.at.number(keyOutcome, index)), nil))
			}
			if err != nil {
				t.Fatal(err)
			}
			v, err := d.group.OpenView(after[1])
			if err == nil {
				v.Close()
			}
			for _, is := range []error{ErrMovedOn, ErrDamaged} {
				if errors.Is(err, is) != errors.Is(tc.want, is) {
					t.Errorf("opened with %v, want %v", err, tc.want)
				}
			}
		})
	}
	t.Run("the sets are older than the snapshot", func(t *testing.T) {
		d := diskOf(t)
		d.give(op{kind: 'j'})
		named := d.at
		named.Index++
		if _, err := d.group.OpenView(named); !errors.Is(err, ErrDamaged) {
			t.Errorf("opened with %v", err)
		}
	})
}

// Store.Close also closes open readers, because a backup may still be reading when the node stops:
//
//  1. Close does not wait for the readers, and leaves nothing open in Pebble, which would return an
//     error;
//  2. Next returns scarce.ErrClosed afterwards, unless the view was read to its end before;
//  3. the caller may close a reader before or after the store.
func TestCloseWithReaders(t *testing.T) {
	d := diskOf(t)
	for row := range uint64(20) {
		d.give(joins(row+1, 1000)...)
	}
	var all []*ViewReader
	for range 6 {
		if err := d.group.Capture(); err != nil {
			t.Fatal(err)
		}
		v, err := d.group.OpenView(d.at)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
		d.give(op{kind: 'j', pair: Pair{Row: 99, Member: d.index}})
	}
	all[0].Close()
	ended := make(chan error)
	for _, v := range all[1:] {
		began := make(chan struct{})
		go func() {
			_, err := v.Next(nil)
			for close(began); err == nil; {
				_, err = v.Next(nil)
			}
			v.Close()
			ended <- err
		}()
		<-began
	}
	d.group.Close()
	if err := d.store.Close(); err != nil {
		t.Error(err)
	}
	for range all[1:] {
		if err := <-ended; !errors.Is(err, scarce.ErrClosed) && !errors.Is(err, io.EOF) {
			t.Errorf("a reader ends with %v", err)
		}
	}
	all[0].Close()
}
