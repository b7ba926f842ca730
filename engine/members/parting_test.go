package members

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/internal/scarce"
)

// thirds is the Partition of these tests.
var thirds = modelPartition{}

// parted makes steps of a Parting of the group of d, of one pair each, and returns it.
func (d *disk) parted(steps int) *Parting {
	d.Helper()
	d.store.stepPairs = 1
	p, err := d.group.Part(thirds, modelParts)
	for range steps {
		if err == nil {
			_, err = p.Step()
		}
	}
	if err != nil {
		d.Fatal(err)
	}
	return p
}

// partsOf returns the pairs of each home on disk, by the three orders of keys. It fails unless the orders agree.
func (d *disk) partsOf(homes []uint32) (parts [][]Pair) {
	d.Helper()
	for _, n := range homes {
		var orders [3][]Pair
		for i, kind := range [...]byte{keyMember, keyTime, keyOf} {
			err := each(d.store.present(), home(n).kind(kind), func(key, _ []byte) (bool, error) {
				p, _, err := parseKey(kind, key)
				orders[i] = append(orders[i], p)
				return true, err
			})
			if err != nil {
				d.Fatal(err)
			}
			slices.SortFunc(orders[i], Pair.compare)
		}
		if !slices.Equal(orders[0], orders[1]) || !slices.Equal(orders[0], orders[2]) {
			d.Errorf("the orders of home %d: %v", n, orders)
		}
		parts = append(parts, orders[0])
	}
	return parts
}

// Between two steps, a home has the pairs of its part up to the frontier. Split copies what is left.
func TestPartingBetweenCommits(t *testing.T) {
	d := diskOf(t)
	d.give(joins(6, 2)...) // rows 0 to 5, members 0 and 1
	p := d.parted(7)       // up to row 3, member 0
	d.give(op{kind: 'l', pair: Pair{Row: 0, Member: 1}}, op{kind: 'j', pair: Pair{Row: 1, Member: 7}}, op{kind: 'd', pair: Pair{Row: 2}},
		op{kind: 'j', pair: Pair{Row: 3, Member: 9}}, op{kind: 'l', pair: Pair{Row: 5, Member: 0}})
	want := [][]Pair{{{Row: 0}, {Row: 3}}, {{Row: 1}, {Row: 1, Member: 1}, {Row: 1, Member: 7}}, nil}
	for part, got := range d.partsOf(p.made.homes) {
		if !slices.Equal(got, want[part]) {
			t.Errorf("part %d has %v, want %v", part, got, want[part])
		}
	}
	states, err := d.group.Split(d.at, 3, modelParts, thirds, func() {})
	if err != nil {
		t.Fatal(err)
	}
	want = [][]Pair{{{Row: 0}, {Row: 3}, {Row: 3, Member: 1}, {Row: 3, Member: 9}}, {{Row: 1}, {Row: 1, Member: 1}, {Row: 1, Member: 7}, {Row: 4}, {Row: 4, Member: 1}}, {{Row: 5, Member: 1}}}
	for part, got := range d.partsOf(p.made.homes) {
		if !slices.Equal(got, want[part]) || states[part].Pairs != uint64(len(got)) {
			t.Errorf("part %d has %v, want %v: %+v", part, got, want[part], states[part])
		}
	}
	if err := d.group.Verify(); err != nil {
		t.Error(err)
	}
	if more, err := p.Step(); more || !errors.Is(err, ErrPartingEnded) || !errors.Is(p.Whole(), ErrPartingEnded) {
		t.Errorf("a step after Split: %v, %v", more, err)
	}
}

// Each of these events ends a Parting, and removes its homes. The next one copies all pairs.
func TestEndsOfAParting(t *testing.T) {
	for name, end := range map[string]func(*disk, *Parting){
		"End": func(_ *disk, p *Parting) { p.End() },
		"another Partition": func(d *disk, _ *Parting) {
			p, err := d.group.Part(modelPartition{other: true}, modelParts)
			if err != nil {
				d.Fatal(err)
			}
			p.End()
		},
		"other sets": func(d *disk, _ *Parting) {
			s, blocks := copyOf(d.T, d.group)
			l, err := d.group.Load()
			for i := 0; i < len(blocks) && err == nil; i++ {
				err = l.Block(blocks[i])
			}
			if err := errors.Join(err, l.Switch(s)); err != nil {
				d.Fatal(err)
			}
		},
		"clear": func(d *disk, _ *Parting) { d.give(append([]op{{kind: 'c'}}, joins(5, 3)...)...) },
		"close": func(d *disk, p *Parting) {
			d.group.Close()
			if _, err := p.Step(); !errors.Is(err, ErrPartingEnded) {
				d.Error(err)
			}
			d.group = d.open(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, steps := range []int{5, 100} {
				d := diskOf(t)
				d.give(joins(5, 3)...)
				p := d.parted(steps)
				if whole := p.Whole(); (whole == nil) != (steps == 100) {
					t.Errorf("after %d steps: %v", steps, whole)
				}
				end(d, p)
				if more, err := p.Step(); more || !errors.Is(err, ErrPartingEnded) {
					t.Errorf("a step after the end: %v, %v", more, err)
				}
				for part, pairs := range d.partsOf(p.made.homes) {
					if len(pairs) > 0 {
						t.Errorf("part %d still has %v", part, pairs)
					}
				}
				if homes := d.store.homes.of(1); len(homes) > 0 {
					t.Errorf("the group still has the homes %v", homes)
				}
				if _, err := d.group.Split(d.at, 9, modelParts, thirds, func() {}); err != nil {
					t.Fatal(err)
				}
				if err := d.group.Verify(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Once Split has begun to copy the rest, a preparation neither ends the Parting nor begins another one.
func TestSplitKeepsItsParting(t *testing.T) {
	d := diskOf(t)
	d.give(joins(5, 3)...)
	p := d.parted(6)
	if _, err := d.group.part(thirds, modelParts, true); err != nil {
		t.Fatal(err)
	}
	p.End()
	if _, err := d.group.Part(modelPartition{other: true}, modelParts); !errors.Is(err, ErrPartingEnded) {
		t.Errorf("another Parting begins: %v", err)
	}
	if again, err := d.group.Part(thirds, modelParts); err != nil || again.made != p.made {
		t.Errorf("%v, %v, want the same Parting", again, err)
	}
	p.End()
	if _, err := d.group.Split(d.at, 9, modelParts, thirds, func() {}); err != nil || d.group.at.home() != p.made.homes[0] {
		t.Errorf("the group is in home %d, the Parting had %v: %v", d.group.at.home(), p.made.homes, err)
	}
}

// A start finds no half-made copy, wherever a crash came, and gives no number of a home twice.
func TestHomesAfterARestart(t *testing.T) {
	mem := vfs.NewMem()
	d := &disk{T: t, store: storeOf(t, mem)}
	d.group = d.open(1)
	d.give(joins(5, 3)...)
	p := d.parted(6)
	if err := d.store.db.LogData(nil, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	d.store.db.Stop()
	<-d.store.filters.ended
	if err := d.store.db.Close(func() {}); err != nil { // as in a crash, nobody ends the Parting
		t.Fatal(err)
	}
	d = &disk{T: t, store: storeOf(t, mem), at: d.at, index: d.index}
	defer func() { d.group.Close(); _ = d.store.Close() }()
	for part, pairs := range d.partsOf(p.made.homes) {
		if len(pairs) > 0 {
			t.Errorf("part %d still has %v", part, pairs)
		}
	}
	d.group = d.open(1)
	if next := d.parted(0); next.made.homes[0] <= p.made.homes[1] { // the last one had no pairs
		t.Errorf("the next homes are %v, before the restart %v", next.made.homes, p.made.homes)
	}
}

// A filter that is being filled while a group splits reads other pairs than those of its part, so it is given up. The
// next one has the pairs of the part.
func TestFilterWhileAGroupSplits(t *testing.T) {
	d := diskOf(t)
	d.give(joins(6, 1000)...)
	var f *filter
	var next []byte
	for next == nil { // the store may begin a filter at the same moment
		d.group.known.forget()
		var err error
		if f, err = d.group.beginFilter(); err == nil && f != nil {
			next, err = d.group.fillPart(f, nil)
		}
		if err != nil && !errors.Is(err, scarce.ErrClosed) {
			t.Fatal(err)
		}
	}
	if _, err := d.group.Split(d.at, 2, modelParts, thirds, func() {}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.group.fillPart(f, next); err == nil {
		t.Error("the filling goes on after the Split")
	}
	if err := d.group.fillFilter(); err != nil {
		t.Fatal(err)
	}
	in := make([]bool, 6)
	if err := d.group.Contains(999, 0, []uint64{0, 1, 2, 3, 4, 5}, in); err != nil || !slices.Equal(in, []bool{true, false, false, true, false, false}) {
		t.Errorf("%v, %v", in, err)
	}
}

// Open refuses a store in which a version without homes has staged the pairs of parts. After Trim, the state of the group
// still names the Split, and the sets are usable.
func TestPartsOfAnEarlierVersion(t *testing.T) {
	for _, trimmed := range []bool{false, true} {
		mem := vfs.NewMem()
		d := &disk{T: t, store: storeOf(t, mem)}
		d.group = d.open(1)
		d.give(joins(2, 2)...)
		state := d.group.state.appendTo(binary.BigEndian.AppendUint32(nil, d.group.log.generation))
		state = binary.BigEndian.AppendUint64(state, 1) // the Split, without a home
		err := d.store.db.Set(full(groupPrefix(keyState, 1)), state, pebble.Sync)
		if !trimmed {
			staged := append(binary.BigEndian.AppendUint32(d.group.log.kind(keyRecord), 1), keyMember)
			err = errors.Join(err, d.store.db.Set(full(staged), make([]byte, stampBytes), pebble.Sync))
		}
		d.group.Close()
		if err := errors.Join(err, d.store.Close()); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Dir: "members", FS: mem, MemoryBytes: MemoryBytesMin, Logger: d.store.cfg.Logger})
		if !trimmed {
			if !errors.Is(err, errOldSplit) {
				t.Errorf("%v, %v", s, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		d.store = s
		d.group = d.open(1)
		d.give(joins(3, 3)...)
		if err := errors.Join(d.group.Trim(d.index), d.group.Verify()); err != nil || d.group.split != 0 || d.group.State().Pairs != 9 {
			t.Errorf("%+v, Split %d, %v", d.group.State(), d.group.split, err)
		}
		d.group.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// After a start with damage, no new home has the number of another one, also if that is above the clock.
func TestNumbersOfHomesAfterDamage(t *testing.T) {
	mem := vfs.NewMem()
	d := &disk{T: t, store: storeOf(t, mem)}
	d.group = d.open(1)
	other := d.open(2)
	d.give(joins(3, 2)...)
	if _, _, err := give(other, State{}, 1, &entry{now: logTimeStart, ops: joins(6, 2)}); err != nil {
		t.Fatal(err)
	}
	d.store.homes.mu.last = uint32(time.Now().Unix()) + 1000
	if _, err := other.Split(other.State(), 2, modelParts, thirds, func() {}); err != nil {
		t.Fatal(err)
	}
	taken := other.at.home()
	if err := d.store.db.Set(full(groupPrefix(keyState, 0)), []byte{1}, pebble.Sync); err != nil { // so Open reads no owner
		t.Fatal(err)
	}
	d.group.Close()
	other.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	d = &disk{T: t, store: storeOf(t, mem), at: d.at, index: d.index}
	if last := d.store.homes.mu.last; last < taken {
		t.Errorf("the next home is above %d, and home %d exists", last, taken)
	}
	d.group, other = d.open(1), d.open(2)
	d.store.homes.mu.last = taken - 1 // as if Open had not found the home
	if p := d.parted(1); slices.Contains(p.made.homes, taken) {
		t.Errorf("a Parting has the homes %v, and another group home %d", p.made.homes, taken)
	}
	if err := other.Verify(); err != nil {
		t.Error(err)
	}
	d.group.Close()
	other.Close()
	if err := d.store.Close(); err != nil {
		t.Error(err)
	}
}

// While steps, ends of Partings, readers, a Scrub and the filling of filters run, entries are applied. Then the group splits, and another adopts a part:
//
//  1. each group has the pairs of its part;
//  2. a read before the Split finds a pair that no entry removes;
//  3. a read after the Split finds such a pair if and only if it is of the part.
func TestPartingBesideAll(t *testing.T) {
	d := diskOf(t)
	d.store.stepPairs = 50
	const rows, stay = 30, 40 // members from 0 to stay-1 of each row stay
	d.give(joins(rows, stay)...)
	child := d.open(2)
	defer child.Close()
	stop := make(chan struct{})
	var beside sync.WaitGroup
	loop := func(fn func(n uint64) error) {
		beside.Go(func() {
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := fn(n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	splits, split := make(chan struct{}), make(chan struct{}) // closed before and after the Split
	closed := func(c chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	loop(func(n uint64) error {
		if closed(splits) {
			return nil
		}
		p, err := d.group.Part(modelPartition{other: n%3 == 0}, modelParts)
		for more := true; more && err == nil; {
			more, err = p.Step()
		}
		if n%5 == 0 && p != nil {
			p.End()
		}
		if errors.Is(err, ErrPartingEnded) {
			err = nil
		}
		return err
	})
	loop(func(n uint64) error {
		after := closed(split)
		in, row := make([]bool, 1), n%rows
		err := d.group.Contains(n%stay, 0, []uint64{row}, in)
		l, failed := d.group.Members(row, 0, Page{Limit: 1000})
		if !after && closed(splits) {
			return errors.Join(err, failed) // the Split may have come between
		}
		if want := !after || modelPart(row) == 0; in[0] != want || (len(l.Entries) >= stay) != want {
			return fmt.Errorf("row %d: %v, %d members, want them: %v", row, in[0], len(l.Entries), want)
		}
		return errors.Join(err, failed)
	})
	loop(func(uint64) error { return d.group.Verify() })
	loop(func(uint64) error {
		if err := d.group.fillFilter(); !errors.Is(err, scarce.ErrClosed) {
			return err
		}
		return nil // the Split has given the filter up
	})
	for n := range uint64(300) {
		var ops []op
		for i := range uint64(5) {
			kind := byte('j')
			if (n/rows+i)%2 == 1 {
				kind = 'l'
			}
			ops = append(ops, op{kind: kind, pair: Pair{Row: (n*7 + i*3) % rows, Member: stay + i}})
		}
		d.give(ops...)
	}
	before := d.at
	close(splits)
	states, err := d.group.Split(d.at, d.index+1, modelParts, thirds, func() {})
	close(split)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := child.AdoptPart(1, d.index+1, 1, 1); err != nil {
		t.Fatal(err)
	}
	d.index++
	d.at = states[0]
	d.give(op{kind: 'j', pair: Pair{Row: 3, Member: 99}})
	if err := d.group.Trim(d.index); err != nil {
		t.Fatal(err)
	}
	close(stop)
	beside.Wait()
	if err := errors.Join(d.group.Verify(), child.Verify()); err != nil {
		t.Error(err)
	}
	if n := states[0].Pairs + states[1].Pairs + states[2].Pairs; n != before.Pairs || child.State().Pairs != states[1].Pairs || d.group.State().Pairs != states[0].Pairs+1 {
		t.Errorf("%+v, %+v, of %+v", states, child.State(), before)
	}
	for row := range uint64(rows) {
		for g, part := range map[*Group]int{d.group: 0, child: 1} {
			l, err := g.Members(row, 0, Page{Limit: 1000})
			if has := len(l.Entries) >= stay; err != nil || has != (modelPart(row) == part) {
				t.Errorf("row %d of part %d has %d members: %v", row, part, len(l.Entries), err)
			}
		}
	}
}

// A Parting that begins beside a Load has its homes until it ends.
func TestPartingBesideALoad(t *testing.T) {
	d := diskOf(t)
	d.give(joins(6, 2)...)
	s, blocks := copyOf(t, d.group)
	l, err := d.group.Load()
	for i := 0; i < len(blocks) && err == nil; i++ {
		err = l.Block(blocks[i])
	}
	if err != nil {
		t.Fatal(err)
	}
	d.store.naming.Lock() // a Load that removes homes without it is as far as it gets
	switched := make(chan error, 1)
	go func() { switched <- l.Switch(s) }()
	for began := time.Now(); d.group.Generation() != l.at.generation && time.Since(began) < 50*time.Millisecond; {
		time.Sleep(time.Millisecond)
	}
	p := d.parted(5)
	d.store.naming.Unlock()
	if err := <-switched; err != nil {
		t.Fatal(err)
	}
	if homes := d.store.homes.of(1); !errors.Is(p.Whole(), ErrPartingEnded) || len(homes) > 0 {
		t.Errorf("a Parting from before the Load: %v, with the homes %v", p.Whole(), homes)
	}
	if states, err := d.group.Split(d.at, 9, modelParts, thirds, func() {}); err != nil || states[1].Pairs != 4 {
		t.Fatal(states, err)
	}
	if err := d.group.Verify(); err != nil {
		t.Error(err)
	}
}

// A group that is opened after a start with damage becomes the owner of its homes before or after another group adopts
// one of them.
func TestOwnersBesideAdoptPart(t *testing.T) {
	d := diskOf(t)
	d.give(joins(6, 2)...)
	d.store.homes.mu.known = false
	d.store.naming.Lock()
	opened := make(chan struct{})
	go func() {
		d.group = d.open(1)
		close(opened)
	}()
	select {
	case <-opened:
		t.Error("the group was opened while homes are handed over")
	case <-time.After(50 * time.Millisecond):
	}
	d.store.naming.Unlock()
	<-opened
}
