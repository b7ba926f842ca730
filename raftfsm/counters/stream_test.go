package counters

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

func goldenCounters(t testing.TB) *Machine {
	c := newCounters(t)
	for i, ops := range goldenOps() {
		c.Apply(rafttest.Command(uint64(i+1), entryOf(0, ops)))
	}
	return c
}

func TestSnapshotBytesAreGolden(t *testing.T) {
	rafttest.Golden(t, "snapshot-empty.bin", rafttest.Persisted(t, newCounters(t)))
	c := goldenCounters(t)
	rafttest.Golden(t, "snapshot-counters.bin", rafttest.Persisted(t, c))
}

func TestDamagedSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	t.Run("few rows", func(t *testing.T) {
		c := goldenCounters(t)
		rafttest.MustRefuseDamage(t, c, rafttest.Persisted(t, c), func() any { return c.State() })
	})
	t.Run("of a catalog", func(t *testing.T) {
		ofCatalog, err := os.ReadFile("../catalog/testdata/snapshot-catalog.bin")
		if err != nil {
			t.Fatal(err)
		}
		c := newCounters(t)
		if err := rafttest.Restore(c, ofCatalog); !errors.Is(err, codec.ErrSnapshot) {
			t.Error(err)
		}
	})
	t.Run("sections of several segments", func(t *testing.T) {
		snapshot := rafttest.Persisted(t, filledCounters(t, 20_000))
		parts := rafttest.SectionsOf(t, snapshot)
		if len(parts) < 4 {
			t.Fatalf("%d sections", len(parts))
		}
		c := goldenCounters(t)
		before := c.State()
		for i := range parts[1:min(4, len(parts))] {
			swapped := slices.Clone(parts)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			for what, damaged := range map[string][][]byte{
				"swapped":  swapped,
				"left out": slices.Delete(slices.Clone(parts), i, i+1),
				"doubled":  slices.Insert(slices.Clone(parts), i, parts[i]),
			} {
				if err := rafttest.Restore(c, bytes.Join(damaged, nil)); !errors.Is(err, codec.ErrSnapshot) || c.State() != before {
					t.Errorf("section %d %s: %v", i, what, err)
				}
			}
		}
	})
}

// filledCounters returns a state machine with the given number of rows, whose ids have many sizes.
func filledCounters(t testing.TB, rows int) *Machine {
	c := newCounters(t)
	r := rand.New(rand.NewPCG(1, 2))
	var ops []engine.Op
	for range rows {
		ops = append(ops, add(r.Uint64()>>r.IntN(30), uint8(r.IntN(4)), 1+r.Int64N(70_000)))
	}
	c.Apply(rafttest.Command(1, entryOf(0, ops)))
	return c
}

func TestSnapshotRestores(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c, want := New(raftfsm.Places{}), model{}
		for index := range uint64(rapid.IntRange(0, 4).Draw(rt, "entries")) {
			ops := drawOps(rt, "ops")
			for i := range ops {
				want.apply(&ops[i])
			}
			c.Apply(rafttest.Command(index+1, entryOf(0, ops)))
		}
		snapshot := rafttest.Persisted(rt, c)
		restored := New(raftfsm.Places{})
		restored.Apply(rafttest.Command(1, entryOf(0, []engine.Op{add(99, 0, 99)}))) // restore removes it
		if err := rafttest.Restore(restored, snapshot); err != nil {
			rt.Fatal(err)
		}
		want.mustEqual(rt, restored.Table())
		got, was := restored.State(), c.State()
		if got.Index != was.Index || got.Digest != was.Digest || got.Rows != was.Rows {
			rt.Fatalf("state %+v, was %+v", got, was)
		}
		again := New(raftfsm.Places{})
		if err := rafttest.Restore(again, rafttest.Persisted(rt, restored)); err != nil || again.State().Digest != was.Digest {
			rt.Fatalf("restored twice: digest %016x, %v", again.State().Digest, err)
		}
	})
}

// FuzzReadCounters restores streams with a valid head and two sections of any bytes, and also the
// same bytes without head and frames.
func FuzzReadCounters(f *testing.F) {
	c := goldenCounters(f)
	section := []byte(nil)
	_ = c.Table().Snapshot().Pages(func(p *engine.Page) error { section = rows.AppendRows(section, p, 0, len(p.IDs)); return nil })
	f.Add(uint64(3), uint8(codec.StreamRows), section, uint8(codec.StreamRows), []byte{}, c.State().Rows, c.Table().Digest())
	f.Fuzz(func(t *testing.T, index uint64, kind1 uint8, one []byte, kind2 uint8, two []byte, count, digest uint64) {
		if err := rafttest.Restore(newCounters(t), one); !errors.Is(err, codec.ErrSnapshot) && len(one) < 33 {
			t.Fatalf("a stream of %d bytes: %v", len(one), err)
		}
		for _, parts := range [][]rafttest.Part{{{Kind: kind1, Payload: one}}, {{Kind: kind1, Payload: one}, {Kind: kind2, Payload: two}}} {
			r := newCounters(t)
			if err := rafttest.Restore(r, rafttest.StreamOf(codec.KindCounters, index, parts, count, digest)); err != nil {
				if !errors.Is(err, codec.ErrSnapshot) {
					t.Fatal(err)
				}
				continue
			}
			if s := r.State(); s.Index != index || s.Rows != count || s.Digest != digest {
				t.Fatalf("state %+v, the end says %d rows, digest %016x", s, count, digest)
			}
			again := newCounters(t)
			if err := rafttest.Restore(again, rafttest.Persisted(t, r)); err != nil || again.State().Digest != digest {
				t.Fatalf("restored again: %v", err)
			}
		}
	})
}
