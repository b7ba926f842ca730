package tiering

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/names"
	"github.com/countd/countd/shard/errs"
)

// fakeNames answers AgeQueries.
type fakeNames struct {
	young uint64
	err   error
	asked []int64 // times of the queries in Unix milliseconds
}

func (f *fakeNames) read(keyspace string, q raftfsm.Query, deadline time.Time) error {
	age := q.(*names.AgeQuery)
	f.asked = append(f.asked, age.Until)
	if keyspace != "articles@ids" || !deadline.After(time.Now()) {
		return errors.New("another read was expected")
	}
	age.Young = f.young
	return f.err
}

// tieringOfTexts returns a Tiering with a keyspace of texts, and a shard of it with perKey ids a key.
func tieringOfTexts(f *fakeNames, cold ColdConfig, perKey uint64) (*Tiering, *Shard) {
	known := catalog.New()
	known.View().Keyspaces["articles"] = catalog.Keyspace{Name: "articles", Kind: codec.KindCounters.String(), Names: "articles@ids", Groups: []uint32{6}}
	known.View().Keyspaces["articles@ids"] = catalog.Keyspace{Name: "articles@ids", Kind: codec.KindNames.String(), Groups: []uint32{7}}
	known.View().Keyspaces["songs"] = catalog.Keyspace{Name: "songs", Kind: codec.KindCounters.String(), Groups: []uint32{8}}
	cold.Layouts = map[string]IDLayout{"articles": LayoutWeibo}
	t := New(Config{Cold: cold, Catalog: known, Headroom: &Headroom{}, Read: f.read})
	t.limited = slog.New(slog.NewTextHandler(io.Discard, nil))
	return t, &Shard{Keyspace: "articles", PerKey: perKey}
}

// Rows of texts are old by the numbers that were given at or before a time, not by a layout. An answer
// is used for a minute, or for the age if that is shorter. Without an answer nothing new is old.
func TestAgeOfTexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeNames{young: 100}
		tiers, s := tieringOfTexts(f, ColdConfig{}, 8)
		check := func(what string, age time.Duration, oldKeys uint64, asked int) {
			t.Helper()
			f.asked = nil
			old := tiers.old(s, age)
			if oldKeys > 0 && !old(0, oldKeys-1) || old(0, oldKeys) || old(oldKeys, oldKeys) || len(f.asked) != asked {
				t.Errorf("%s: not the first %d keys are old, or it was asked %d times, want %d", what, oldKeys, len(f.asked), asked)
			}
		}
		check("first", time.Hour, 12, 1) // key 12 has the ids 96 to 103
		if want := time.Now().Add(-time.Hour).UnixMilli(); f.asked[0] != want {
			t.Errorf("it asked for %d, want %d", f.asked[0], want)
		}
		f.young = 104
		check("cached", time.Hour, 12, 0)
		time.Sleep(ageFresh)
		check("a minute later", time.Hour, 13, 1)
		f.err = errs.ErrNoQuorum
		time.Sleep(ageFresh)
		check("without an answer", time.Hour, 13, 1)
		check("once more", time.Hour, 13, 0)
		check("another age", 2*time.Hour, 0, 1)
		f.err = nil
		time.Sleep(time.Second)
		check("still waiting", 2*time.Hour, 0, 0)
		check("a short age", time.Second, 13, 1)
		time.Sleep(time.Second)
		check("a short age again", time.Second, 13, 1)
		check("an age from before 1970", ColdOlderMax, 13, 1)
		if f.asked[0] != 0 {
			t.Errorf("it asked for %d", f.asked[0])
		}

		tiers.cfg.Catalog.View().Keyspaces["articles@ids"] = catalog.Keyspace{Name: "articles@ids", Groups: []uint32{9}}
		f.err = errs.ErrNoQuorum
		check("a later keyspace of the name", time.Hour, 0, 1)
		if tiers.Misfit(s) != nil {
			t.Error("texts are of no layout")
		}
	})
}

// Rows of texts are packed by age too. A snapshot that is being loaded uses only answers that are there.
func TestTextsArePackedByAge(t *testing.T) {
	f := &fakeNames{young: 100}
	tiers, s := tieringOfTexts(f, ColdConfig{SealAfter: time.Hour, After: 10 * time.Hour}, 1)
	if seal := tiers.OldToSeal(s); seal(0, 0) || len(f.asked) > 0 {
		t.Errorf("before an answer, number 0 is old, or it was asked %d times", len(f.asked))
	}
	tiers.cfg.Headroom.DiskFull.Store(true) // so that nothing is about to move
	tiers.cfg.Draining = new(atomic.Bool)
	due := tiers.dueToSeal(s)
	if !due(0, 99) || due(0, 100) || len(f.asked) != 1 {
		t.Errorf("numbers to 99 %v, to 100 %v, asked %d", due(0, 99), due(0, 100), len(f.asked))
	}
	if seal := tiers.OldToSeal(s); !seal(0, 99) || seal(0, 100) {
		t.Error("the answer is not used for a snapshot")
	}
	tiers.cfg.Headroom.MemoryTight.Store(true)
	if !tiers.OldToSeal(s)(0, 1000) {
		t.Error("while memory is tight, not all rows are packed")
	}
	if tiers.OldToSeal(&Shard{Keyspace: "songs", PerKey: 1}) != nil {
		t.Error("numbers without a time have an age")
	}
}

// An order by age moves rows of texts, and one by id none.
func TestOrdersOnTexts(t *testing.T) {
	f := &fakeNames{young: 100}
	tiers, s := tieringOfTexts(f, ColdConfig{}, 1)
	field := func(o TieringJob) string {
		if err := tiers.checkCold(&o); err != nil {
			refused, _ := errors.AsType[*errs.ArgumentError](err)
			return refused.Field
		}
		return ""
	}
	got := []string{
		field(TieringJob{Keyspace: "articles", OlderThan: time.Hour}), field(TieringJob{Keyspace: "articles", Before: 9}),
		field(TieringJob{Keyspace: "songs", OlderThan: time.Hour}), field(TieringJob{Keyspace: "songs", Before: 9}),
	}
	if !slices.Equal(got, []string{"", "before", "older_than_seconds", ""}) {
		t.Errorf("fields %q", got)
	}
	if moves := tiers.agedBy(&TieringJob{OlderThan: time.Hour}, s); !moves(0, 99) || moves(0, 100) {
		t.Error("an order by age does not move the numbers below 100")
	}
	if tiers.agedBy(&TieringJob{Before: 1 << 60}, s)(0, 0) {
		t.Error("an order for all keyspaces, up to an id, moves texts")
	}
}

// Rows of users have no age, however long ago their numbers were given.
func TestUsersHaveNoAge(t *testing.T) {
	f := &fakeNames{young: 100}
	tiers, s := tieringOfTexts(f, ColdConfig{}, 1)
	view := tiers.cfg.Catalog.View()
	users := view.Keyspaces["articles"]
	users.Name = kinds.KeyspaceUsers
	view.Keyspaces[users.Name] = users
	for keyspace, old := range map[string]bool{users.Name: false, "articles": true} {
		s.Keyspace = keyspace
		if is := tiers.old(s, time.Hour)(0, 50); is != old || tiers.hasAge(s) != old {
			t.Errorf("%s: old %v, has an age %v", keyspace, is, tiers.hasAge(s))
		}
	}
}
