package members

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/internal/scarce"
)

// The test damages the files of a store at random. It compares the store with a map, and with
// another replica of each group in a store without damage. It checks:
//
//  1. Each read returns ErrDamaged, or the answer of the map after the entry that the group's state
//     has reached.
//  2. Each entry is refused, or judged as the other replica judges it, both the first time and in a
//     replay.
//  3. If there is only one damaged file, each group whose sets were readable before the removal of
//     the file has readable sets afterwards. With more damaged files, the removal of one may
//     uncover damage in the next. A group gives up unreadable sets only if a Load began since the
//     store was opened. Until then, the removal keeps each pair of a part that could be read.
//  4. A view that is read to its end suffices to build a replica, whatever happened meanwhile.
//  5. Nothing is refused before there is damage.
//  6. Once the unreadable groups are loaded from their other replicas, no call returns ErrDamaged
//     any more, not even after a restart.
func TestDamageModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &damageModel{fs: vfs.NewCrashableMem(), peer: storeOf(t, vfs.NewMem()), grows: rapid.Bool().Draw(t, "grows")}
		d.store = smallFilesOf(t, d.fs, &d.warned)
		for number := range uint32(3) {
			g := &damageGroup{world: world{sets: map[Pair]Stamp{}}, number: number, peer: groupOf(t, d.peer, number)}
			d.groups = append(d.groups, g)
			d.open(t, g)
		}
		defer func() {
			d.close()
			for _, g := range d.groups {
				g.peer.Close()
			}
			_ = d.peer.Close()
		}()
		if d.grows && rapid.Bool().Draw(t, "the parent has split") {
			for range 3 {
				d.largeEntry(t, d.groups[modelParent])
			}
			d.divide(t)
			d.compact(t)
		}
		steps := d.steps()
		maps.Copy(steps, map[string]func(*rapid.T){
			"restart": func(t *rapid.T) {
				d.restart(t, rapid.Bool().Draw(t, "crash"), rapid.Bool().Draw(t, "damage"))
			},
			"": func(t *rapid.T) { d.check(t, d.groups[rapid.IntRange(0, len(d.groups)-1).Draw(t, "check")]) },
		})
		t.Repeat(steps)
		d.heal(t)
	})
}

// damagesMax bounds the bits of the store's files that change in one run.
const damagesMax = 3

// damageModel consists of the store whose files are damaged and of peer, a store without damage.
type damageModel struct {
	fs      *vfs.MemFS
	store   *Store
	peer    *Store
	groups  []*damageGroup
	grows   bool        // group modelParent splits, and the other groups begin as its parts
	split   *modelSplit // nil before the Split
	damages int
	depth   int
	warned  strings.Builder
}

// damageGroup is one group in both stores. Its other replica has all entries of the log.
type damageGroup struct {
	world
	number uint32

	group *Group
	state stored // of the state machine; the generation is unused
	saved stored // the stored snapshot; entry 0 means none
	stuck bool   // the group refused an entry or the snapshot
	busy  bool   // an entry is being applied

	peer      *Group
	peerState stored
	peerSaved stored

	load   *Load // the running Load, nil if there is none
	begun  bool  // a Load began since the store was opened
	lost   bool  // its sets were removed, perhaps with the part that it had adopted
	blocks [][]byte
	found  State  // state of the sets that load loads
	loaded stored // the snapshot that contains these sets

	view  *ViewReader // the view being read, nil if there is none
	read  [][]byte
	named stored // state in the snapshot for which view was opened
}

// stored is the state of a replica after an entry.
type stored struct {
	index      int
	at         State
	generation uint32
}

// smallFilesOf opens a store whose files and blocks have few pairs, and which compacts only on
// request.
func smallFilesOf(t interface{ Fatal(...any) }, fs vfs.FS, warned io.Writer, set ...func(*pebble.Options)) *Store {
	s, err := open(Config{
		Dir: "members", FS: fs, MemoryBytes: MemoryBytesMin,
		Logger: slog.New(slog.NewTextHandler(warned, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Groups: func() []uint32 { return []uint32{0, 1, 2} }, Fatal: func(err error) { panic(err) },
	}, func(o *pebble.Options) {
		o.DisableAutomaticCompactions, o.DisableTableStats, o.L0StopWritesThreshold = true, true, 1000
		for i := range o.Levels {
			o.Levels[i].BlockSize, o.Levels[i].IndexBlockSize, o.TargetFileSizes[i] = 100, 200, 1000
		}
		for _, fn := range set {
			fn(o)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func groupOf(t *rapid.T, s *Store, number uint32) *Group {
	g, err := s.Group(number)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// refused reports whether err is an ErrDamaged. The test fails if err is another error, or if no
// file was damaged yet.
func (d *damageModel) refused(t *rapid.T, err error) bool {
	if err != nil && (!errors.Is(err, ErrDamaged) || d.damages == 0) {
		t.Fatalf("%d damages: %v", d.damages, err)
	}
	return err != nil
}

// open opens a group of the store, as after a restart.
func (d *damageModel) open(t *rapid.T, g *damageGroup) {
	g.group, g.state = groupOf(t, d.store, g.number), g.saved
	g.stuck = d.refused(t, g.group.usable())
	if g.saved.index > 0 {
		g.stuck = d.refused(t, g.group.Adopts(g.saved.generation, g.saved.at))
	}
}

func (d *damageModel) close() {
	for _, g := range d.groups {
		if g.view != nil {
			g.view.Close()
		}
		if g.group != nil {
			g.group.Close()
		}
		g.group, g.view, g.load, g.begun = nil, nil, nil, false
	}
	_ = d.store.Close()
}

// restart closes the store and opens it again. If crash is set, unsynced data is lost; if damage is
// set, a file is damaged.
func (d *damageModel) restart(t *rapid.T, crash, damage bool) {
	var before []int
	for _, g := range d.groups {
		before = append(before, g.state.index)
	}
	fs := d.fs
	if crash {
		lost := rapid.IntRange(0, 100).Draw(t, "kept")
		fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: lost, RNG: rand.New(rand.NewPCG(1, uint64(lost)))})
	}
	staged := d.stagedFiles()
	d.close()
	if d.fs = fs; damage {
		d.damage(t, staged)
	}
	d.store = smallFilesOf(t, d.fs, &d.warned)
	for _, i := range rapid.Permutation([]int{0, 1, 2}).Draw(t, "order") {
		switch rapid.IntRange(0, 5).Draw(t, "between") {
		case 0:
			d.compact(t)
		case 1:
			d.discard(t)
		}
		g := d.groups[i]
		d.open(t, g)
		d.apply(t, g, before[i])
	}
}

// stagedFiles returns the names of the files that may have records or parts.
func (d *damageModel) stagedFiles() (names []string) {
	for _, from := range [][]byte{{keyRecord}, groupPrefix(keyMember, homesGroup), groupPrefix(keyTime, homesGroup), groupPrefix(keyDead, homesGroup)} {
		levels, err := d.store.db.SSTables(pebble.WithKeyRangeFilter(from, scarce.PrefixEnd(from)))
		for _, file := range slices.Concat(levels...) {
			names = append(names, file.BackingSSTNum.String()+".sst")
		}
		if err != nil {
			return nil
		}
	}
	return names
}

// damage flips a random bit of a file, in half of the cases of one that may have records or parts.
func (d *damageModel) damage(t *rapid.T, staged []string) {
	names, err := d.fs.List("members")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".sst") })
	if rapid.Bool().Draw(t, "of parts") && len(staged) > 0 {
		names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(staged, name) })
	}
	slices.Sort(names)
	if len(names) == 0 || d.damages == damagesMax {
		return
	}
	path := d.fs.PathJoin("members", rapid.SampledFrom(names).Draw(t, "file"))
	f, err := d.fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() == 0 { // a crash may leave an empty file that the manifest does not name
		return
	}
	b, at := make([]byte, 1), rapid.Int64Range(0, info.Size()-1).Draw(t, "at")
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	d.damages++
}

// steps returns the events that may happen at any moment, even during another step.
func (d *damageModel) steps() map[string]func(*rapid.T) {
	ofOne := func(fn func(*rapid.T, *damageGroup)) func(*rapid.T) {
		return func(t *rapid.T) {
			if g := d.groups[rapid.IntRange(0, len(d.groups)-1).Draw(t, "group")]; !g.busy && g.group != nil {
				fn(t, g)
			}
		}
	}
	return map[string]func(*rapid.T){
		"entry":       ofOne(d.entry),
		"large entry": ofOne(d.largeEntry),
		"snapshot":    ofOne(d.snapshot),
		"peer snapshot": ofOne(func(t *rapid.T, g *damageGroup) {
			if !d.barred(g, g.peerState) {
				g.savePeer(t)
			}
		}),
		"load":       ofOne(d.loads),
		"view":       ofOne(d.views),
		"scrub":      ofOne(d.scrub),
		"begin anew": ofOne(d.beginAnew),
		"flush": func(t *rapid.T) {
			if err := d.store.db.Flush(); err != nil {
				t.Fatal(err)
			}
		},
		"compact": d.compact,
		"discard": d.discard,
		"damage":  func(t *rapid.T) { d.damage(t, d.stagedFiles()) },
	}
}

// loads begins a Load, or does a step of the running one.
func (d *damageModel) loads(t *rapid.T, g *damageGroup) {
	if g.load == nil {
		d.startLoad(t, g)
		return
	}
	switch rapid.IntRange(0, 5).Draw(t, "of a load") {
	case 0:
		g.load = nil // abandon it
	case 1, 2:
		d.endLoad(t, g)
	default:
		d.loadBlock(t, g)
	}
}

// views opens a view, or reads from the open one.
func (d *damageModel) views(t *rapid.T, g *damageGroup) {
	if g.view == nil {
		d.startView(t, g)
	} else {
		d.readView(t, g)
	}
}

// beginAnew sometimes removes all sets, the replica, or older views.
func (d *damageModel) beginAnew(t *rapid.T, g *damageGroup) {
	switch rapid.IntRange(0, 9).Draw(t, "anew") {
	case 0:
		d.reset(t, g)
	case 1:
		d.drop(t, g)
	case 2:
		g.group.ReleaseViews(time.Now())
	}
}

// meanwhile does a few steps in the middle of another step.
func (d *damageModel) meanwhile(t *rapid.T) {
	if d.depth > 0 {
		return
	}
	d.depth++
	defer func() { d.depth-- }()
	steps := d.steps()
	names := slices.Sorted(maps.Keys(steps))
	names = append(names, "load", "compact", "discard", "discard")
	for range rapid.IntRange(0, 3).Draw(t, "meanwhile") {
		steps[rapid.SampledFrom(names).Draw(t, "step")](t)
	}
}

func (d *damageModel) compact(t *rapid.T) {
	_ = d.store.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false) // Compact fails on damage
}

func (d *damageModel) discard(t *rapid.T) {
	d.keeps(t, nil, func() {
		d.store.mu.Lock()
		for _, f := range d.store.mu.files {
			f.tried = time.Time{}
		}
		d.store.mu.Unlock()
		d.store.Discard()
	})
}

// keeps calls step, which may remove a damaged file. It checks that each group that was readable
// before is readable afterwards, apart from the group except.
func (d *damageModel) keeps(t *rapid.T, except *damageGroup, step func()) {
	readable, usable, staged := map[*damageGroup]bool{}, map[*damageGroup]bool{}, d.stagedKeys()
	for _, g := range d.groups {
		readable[g] = g != except && g.group != nil && g.group.Verify() == nil
		usable[g] = g != except && g.group != nil && g.group.usable() == nil && !g.begun
	}
	step()
	for _, g := range d.groups {
		if readable[g] {
			if err := g.group.Verify(); err != nil && (d.damages == 1 || !errors.Is(err, ErrDamaged)) {
				t.Fatalf("group %d could be read before a damaged file was removed: %v", g.number, err)
			}
		}
		if usable[g] && g.group.usable() != nil {
			t.Fatalf("group %d was given up, and no other replica is known to have its sets", g.number)
		}
	}
	if parent := d.groups[modelParent]; parent != except && parent.group != nil && parent.group.usable() == nil {
		after := d.stagedKeys()
		for key, err := range staged {
			if now, is := after[key]; err == nil && is && errors.Is(now, pebble.ErrNotFound) {
				t.Fatalf("the pair %+v of home %d was removed", key.Pair, key.home)
			}
		}
	}
}

// stagedPair is a pair in the home of a part that nobody has adopted yet.
type stagedPair struct {
	Pair
	home uint32
}

// stagedKeys returns for each pair of a part the error of its lookup.
func (d *damageModel) stagedKeys() map[stagedPair]error {
	errs, parent := map[stagedPair]error{}, d.groups[modelParent]
	if d.split == nil || parent.group == nil {
		return errs
	}
	records, err := readRecords(d.store.present(), parent.group.log)
	if err != nil {
		return errs
	}
	for _, r := range records {
		if r.part == 0 {
			continue
		}
		for p := range d.split.parts[r.part] {
			first := home(r.home).kind(keyMember)
			it, err := d.store.iterate(first, scarce.PrefixEnd(first), false)
			if err == nil {
				var at Stamp
				if at, err = (lookup{it, home(r.home)}).stamp(p); err == nil && at == 0 {
					err = pebble.ErrNotFound
				}
				_ = it.Close()
			}
			errs[stagedPair{p, r.home}] = err
		}
	}
	return errs
}

func (d *damageModel) entry(t *rapid.T, g *damageGroup) {
	parent := d.groups[modelParent]
	switch {
	case !d.grows || len(g.log) > 0 && (g != parent || d.split != nil):
		d.give(t, g, drawEntry(t, len(g.log)))
	case g == parent && rapid.IntRange(0, 3).Draw(t, "split") > 0:
		d.give(t, g, drawEntry(t, len(g.log)))
	case g == parent:
		d.divide(t)
	case d.split != nil:
		d.give(t, g, entry{now: logTimeStart, split: d.split, part: int(g.number)})
	}
}

// divide appends the entry that splits the parent.
func (d *damageModel) divide(t *rapid.T) {
	parent := d.groups[modelParent]
	d.split = &modelSplit{index: uint64(len(parent.log) + 1)}
	d.give(t, parent, entry{now: logTimeStart, split: d.split})
}

// largeEntry appends an entry with enough members to fill several files.
func (d *damageModel) largeEntry(t *rapid.T, g *damageGroup) {
	if d.grows && g.number != modelParent && len(g.log) == 0 {
		return
	}
	e := entry{now: logTimeStart + int64(len(g.log))}
	row, kind := rapid.Uint64Range(0, modelRows-1).Draw(t, "row"), rapid.SampledFrom([]byte("jjjl")).Draw(t, "kind")
	for m := range uint64(60) {
		e.ops = append(e.ops, op{kind: kind, pair: Pair{Row: row, Member: m}})
	}
	d.give(t, g, e)
}

// give applies the next entry to the other replica, and in most cases to the store.
func (d *damageModel) give(t *rapid.T, g *damageGroup, e entry) {
	want := g.model(&e)
	var err error
	g.peerState.index++
	if e.judged, g.peerState.at, err = give(g.peer, g.peerState.at, uint64(g.peerState.index), &e); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e.judged, want) {
		t.Fatalf("judged %v, want %v", e.judged, want)
	}
	e.after = g.peerState.at
	g.log = append(g.log, e)
	if rapid.IntRange(0, 3).Draw(t, "behind") > 0 {
		d.apply(t, g, len(g.log))
	}
}

// apply applies the entries of a group up to index to in the store.
func (d *damageModel) apply(t *rapid.T, g *damageGroup, to int) {
	for g.load == nil && !g.stuck && g.state.index < to {
		e := &g.log[g.state.index]
		g.busy = true
		var judged []bool
		var after State
		var err error
		apply := func() {
			judged, after, err = give(g.group, g.state.at, uint64(g.state.index+1), e, func() { d.meanwhile(t) })
		}
		apply()
		g.busy = false
		if errors.Is(err, ErrNotStaged) && (g.lost || !d.staged()) {
			return
		}
		if g.stuck = d.refused(t, err); g.stuck {
			return
		}
		for i := range max(len(judged), len(e.judged)) {
			if judged[i] != e.judged[i] {
				t.Fatalf("group %d, entry %d, op %d of a member: judged %v, by the other replica %v", g.number, g.state.index+1, i, judged[i], e.judged[i])
			}
		}
		if after != e.after {
			t.Fatalf("group %d, entry %d: %+v, by the other replica %+v", g.number, g.state.index+1, after, e.after)
		}
		g.state = stored{index: g.state.index + 1, at: after}
	}
}

// staged reports whether the store must have the staged parts: no damage has replaced the parent's sets, and
// the parent has applied the Split and may replay it.
func (d *damageModel) staged() bool {
	p := d.groups[modelParent]
	return d.damages == 0 && p.group != nil && p.state.index >= int(d.split.index) && p.saved.index < int(d.split.index)
}

// unborn reports whether a replica of the group in the given state has yet to adopt its part. Then it
// has no snapshot.
func (d *damageModel) unborn(g *damageGroup, at stored) bool {
	return d.grows && g.number != modelParent && at.index == 0 && len(g.log) > 0
}

// barred reports whether the group must not take a snapshot, because it has split and a child's replica
// needs its part.
func (d *damageModel) barred(g *damageGroup, at stored) bool {
	if d.split == nil || g.number != modelParent || at.index < int(d.split.index) {
		return false
	}
	return slices.ContainsFunc(d.groups[1:], func(child *damageGroup) bool { return child.peerSaved.index == 0 })
}

// asOf returns the sets after an entry.
func (w *world) asOf(index uint64) map[Pair]Stamp {
	then := world{sets: map[Pair]Stamp{}}
	for i := range w.log[:index] {
		then.model(&w.log[i])
	}
	return then.sets
}

// check compares all reads of a group with the map.
func (d *damageModel) check(t *rapid.T, g *damageGroup) {
	d.refused(t, g.group.Verify())
	sets := g.asOf(g.group.State().Index)
	compare := func(of string, id uint64, column uint8, want []uint64, got []uint64, err error) {
		slices.Sort(want)
		slices.Sort(got)
		if !d.refused(t, err) && !slices.Equal(got, want) {
			t.Fatalf("group %d, entry %d: %s of %d.%d: %v, want %v", g.number, g.group.State().Index, of, id, column, got, want)
		}
	}
	rows, members := map[Pair][]uint64{}, map[Pair][]uint64{}
	for p := range sets {
		members[Pair{Row: p.Row, Column: p.Column}] = append(members[Pair{Row: p.Row, Column: p.Column}], p.Member)
		rows[Pair{Member: p.Member, Column: p.Column}] = append(rows[Pair{Member: p.Member, Column: p.Column}], p.Row)
	}
	for column := range uint8(2) {
		for row := range uint64(modelRows) {
			got, err := listed(t, 0, func(page Page) (List, error) { return g.group.Members(row, column, page) })
			compare("members", row, column, members[Pair{Row: row, Column: column}], got, err)
		}
		for member := range uint64(modelMembers) {
			got, err := listed(t, 1, func(page Page) (List, error) { return g.group.Rows(member, column, page) })
			compare("rows", member, column, rows[Pair{Member: member, Column: column}], got, err)
			ids, in := []uint64{0, 1, 2, 3}, make([]bool, modelRows)
			err = g.group.Contains(member, column, ids, in)
			ids = slices.DeleteFunc(ids, func(row uint64) bool { return !in[row] })
			compare("checks", member, column, rows[Pair{Member: member, Column: column}], ids, err)
		}
	}
}

// listed reads a list page by page. The next page begins at the last id plus skip.
func listed(t *rapid.T, skip uint64, read func(Page) (List, error)) (ids []uint64, err error) {
	page, last := Page{Limit: 7}, Entry{}
	for {
		l, err := read(page)
		if err != nil {
			return nil, err
		}
		for i, e := range l.Entries {
			if (page.Continues || i > 0) && last.Compare(e) >= 0 {
				t.Fatalf("%v behind %v", e, last)
			}
			ids, last = append(ids, e.ID), e
		}
		if !l.More {
			return ids, nil
		}
		page.After, page.Continues = Entry{last.ID + skip, last.At}, true
	}
}

// snapshot takes a snapshot of the store's replica.
func (d *damageModel) snapshot(t *rapid.T, g *damageGroup) {
	if g.stuck || g.load != nil || g.state.index == 0 || d.barred(g, g.state) || d.refused(t, g.group.Capture()) {
		return
	}
	if err := g.group.Sync(); err != nil {
		t.Fatal(err)
	}
	g.saved = stored{g.state.index, g.state.at, g.group.Generation()}
	if err := g.group.Trim(uint64(g.saved.index)); err != nil {
		t.Fatal(err)
	}
}

func (g *damageGroup) savePeer(t *rapid.T) {
	if err := errors.Join(g.peer.Capture(), g.peer.Trim(uint64(g.peerState.index))); err != nil {
		t.Fatal(err)
	}
	g.peerSaved = g.peerState
}

// startLoad begins a Load of the other replica's sets. It does nothing if the store's replica is
// ahead of the other replica's snapshot, and is neither stuck nor damaged.
func (d *damageModel) startLoad(t *rapid.T, g *damageGroup) {
	if !g.stuck && g.peerSaved.index < g.state.index && g.group.Verify() == nil || d.unborn(g, g.peerSaved) {
		return
	}
	v, err := g.peer.OpenView(g.peerSaved.at)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	g.loaded, g.found, g.blocks = g.peerSaved, v.State(), nil
	for {
		b, err := v.Next(nil)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		const few = 10 * pairBytes
		for ; b[0] == blockPairs && len(b) > 1+few; b = append([]byte{blockPairs}, b[1+few:]...) {
			g.blocks = append(g.blocks, b[:1+few])
		}
		g.blocks = append(g.blocks, b)
	}
	g.begun = true
	d.keeps(t, g, func() {
		if g.load, err = g.group.Load(); err != nil {
			t.Fatal(err)
		}
	})
}

func (d *damageModel) loadBlock(t *rapid.T, g *damageGroup) {
	for n := min(len(g.blocks), 3); g.load != nil && n > 0; n-- {
		if err := g.load.Block(g.blocks[0]); err != nil {
			t.Fatal(err)
		}
		g.blocks = g.blocks[1:]
		if rapid.IntRange(0, 3).Draw(t, "compact") == 0 {
			d.compact(t)
		}
	}
}

func (d *damageModel) endLoad(t *rapid.T, g *damageGroup) {
	if g.load == nil {
		return
	}
	for len(g.blocks) > 0 {
		d.loadBlock(t, g)
		d.meanwhile(t)
		if g.load == nil || g.group == nil {
			return
		}
	}
	load, before := g.load, g.state.index
	g.lost = true
	if err := load.Switch(g.found); err != nil {
		t.Fatal(err)
	}
	g.load, g.stuck, g.state = nil, false, g.loaded
	g.saved = g.loaded
	g.saved.generation = g.group.Generation()
	d.apply(t, g, max(before, g.state.index))
}

// startView opens the view for the stored snapshot.
func (d *damageModel) startView(t *rapid.T, g *damageGroup) {
	if g.view != nil || g.stuck {
		return
	}
	named := g.state
	if rapid.Bool().Draw(t, "saved") && g.saved.index > 0 {
		named = g.saved
	}
	if d.unborn(g, named) {
		return
	}
	v, err := g.group.OpenView(named.at)
	if !d.refused(t, err) {
		g.view, g.named, g.read = v, named, nil
	}
}

// readView reads blocks of the view. At the end of the view, it builds a replica from all its
// blocks.
func (d *damageModel) readView(t *rapid.T, g *damageGroup) {
	for n := rapid.IntRange(0, 3).Draw(t, "blocks"); g.view != nil && n > 0; n-- {
		b, err := g.view.Next(nil)
		if err == nil {
			g.read = append(g.read, b)
			continue
		}
		s := g.view.State()
		g.view.Close()
		g.view = nil
		if !errors.Is(err, io.EOF) {
			d.refused(t, err)
			return
		}
		d.replicate(t, g, s)
	}
}

// replicate builds a replica from the blocks of a view, and applies the later entries to it.
func (d *damageModel) replicate(t *rapid.T, g *damageGroup, s State) {
	const number = 100
	replica := groupOf(t, d.peer, number)
	l, err := replica.Load()
	for i := 0; i < len(g.read) && err == nil; i++ {
		err = l.Block(g.read[i])
	}
	if err == nil {
		err = l.Switch(s)
	}
	at := g.named.at
	for i := g.named.index; i < len(g.log) && err == nil; i++ {
		if _, at, err = give(replica, at, uint64(i+1), &g.log[i]); err == nil && at != g.log[i].after {
			t.Fatalf("a replica made of a view is at %+v after entry %d, want %+v", at, i+1, g.log[i].after)
		}
	}
	if errors.Is(err, ErrNotStaged) {
		err = nil // the other replica has adopted the part
	}
	if err == nil {
		err = replica.Verify()
	}
	replica.Close()
	if err = errors.Join(err, d.peer.Drop(number)); err != nil {
		t.Fatalf("a replica made of a view: %v", err)
	}
}

func (d *damageModel) scrub(t *rapid.T, g *damageGroup) {
	d.refused(t, g.group.Scrub(func(int) error {
		d.meanwhile(t)
		return nil
	}))
}

// reset removes all sets, as for a snapshot without sets, and applies all entries again.
func (d *damageModel) reset(t *rapid.T, g *damageGroup) {
	before := g.state.index
	g.load = nil
	g.begun, g.lost = true, true
	d.keeps(t, g, func() {
		if err := g.group.Reset(); err != nil {
			t.Fatal(err)
		}
	})
	g.stuck, g.state, g.saved = false, stored{}, stored{}
	d.apply(t, g, before)
}

// drop removes the store's replica, and opens a new one.
func (d *damageModel) drop(t *rapid.T, g *damageGroup) {
	if d.depth > 0 {
		return // a step that uses the group is running
	}
	if g.view != nil {
		g.view.Close()
	}
	g.group.Close()
	g.group, g.view, g.load, g.begun = nil, nil, nil, false
	g.lost = true
	if err := d.store.Drop(g.number); err != nil {
		t.Fatal(err)
	}
	if rapid.Bool().Draw(t, "compact") {
		d.compact(t)
	}
	if rapid.Bool().Draw(t, "discard") {
		d.discard(t)
	}
	g.saved = stored{}
	d.open(t, g)
}

// heal loads the unreadable groups until all groups are readable.
func (d *damageModel) heal(t *rapid.T) {
	d.depth++ // no steps meanwhile
	for round := range 10 {
		d.warned.Reset()
		d.restart(t, false, false)
		healthy := true
		for range len(d.groups) * damagesMax { // a Load may uncover damage in another file
			for _, g := range d.groups {
				if d.apply(t, g, len(g.log)); g.stuck || g.state.index < len(g.log) || g.group.Verify() != nil {
					healthy = false
					g.savePeer(t)
					d.startLoad(t, g)
					d.endLoad(t, g)
					d.apply(t, g, len(g.log))
				}
			}
		}
		for _, g := range d.groups {
			if d.check(t, g); healthy && g.state.at != g.peerState.at {
				t.Fatalf("group %d is at %+v, the other replica at %+v", g.number, g.state.at, g.peerState.at)
			}
		}
		err := d.store.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
		if healthy && err == nil && d.store.Stats().Damaged == 0 {
			return
		}
		d.discard(t)
		if round == 9 {
			t.Fatalf("damage stays: %v\n%s", err, d.warned.String())
		}
	}
}
