package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/must"
)

// world is a target with an archive, the cluster whose backups it has, and what a naive archive would have stored.
type world struct {
	target  *memTarget
	cluster *memCluster
	begun   uint64              // backups
	states  map[uint64][][]byte // by the index that is in the manifest of a backup: its snapshots
	good    map[string]bool     // by name of a backup that was there: whether it was durable

	recipients *Recipients // nil for an archive that is not sealed
	identities *Identities
}

func newWorld(shards int) *world {
	w := &world{target: newMemTarget(), cluster: newMemCluster(shards), states: map[uint64][][]byte{}, good: map[string]bool{}}
	for group := range w.cluster.states {
		w.cluster.states[group] = noise(uint64(group), 6000)
	}
	return w
}

// change changes bytes of the cluster: in place, added or removed.
func (w *world) change(rng *rand.Rand) {
	for group, state := range w.cluster.states {
		switch at := rng.IntN(len(state)); rng.IntN(5) {
		case 0:
			w.cluster.states[group] = must.Flipped(state, at)
		case 1:
			w.cluster.states[group] = slices.Insert(bytes.Clone(state), at, noise(rng.Uint64(), 1+rng.IntN(2000))...)
		case 2:
			w.cluster.states[group] = append(bytes.Clone(state[:at]), state[min(at+rng.IntN(500), len(state)-1):]...)
		}
	}
}

// archive opens the archive as a process sees it, with small chunks.
func (w *world) archive(p Target) (*Archive, error) {
	a, err := OpenArchive(w.ctx(), w.target, w.identities)
	if err != nil {
		return nil, err
	}
	a.sealing.recipients = w.recipients
	a.target, a.cutting = p, newCutting(64, 256, 1024)
	return a, nil
}

func (w *world) ctx() context.Context { return context.Background() }

// backup is one run of a backup of the cluster as it is now. The returned function may run later, with others.
func (w *world) backup(p Target) (run func() (*Saved, error)) {
	w.begun++
	c := newMemCluster(len(w.cluster.states))
	c.index = w.begun
	var states [][]byte
	for shard := range c.states {
		c.states[shard] = w.cluster.states[shard]
	}
	for shard := range len(c.states) {
		states = append(states, c.states[uint32(shard+1)])
	}
	w.states[w.begun] = states
	return func() (*Saved, error) {
		a, err := w.archive(p)
		if err != nil {
			return nil, err
		}
		return a.Backup(w.ctx(), c, Report{})
	}
}

// check restores all backups of the archive and compares them with what the naive archive has. The two newest backups of
// all times are always there.
func (w *world) check() error {
	a, err := w.archive(w.target)
	if err != nil {
		return err
	}
	list, err := a.List(w.ctx())
	if err != nil {
		return err
	}
	here := map[string]bool{}
	for _, e := range list {
		if e.Err != nil {
			return e.Err
		}
		w.good[e.Name], here[e.Name] = w.good[e.Name] || w.target.isDurable(manifestPath(e.Name)), true
		b, err := a.Open(w.ctx(), e.Name)
		if err != nil {
			return err
		}
		files := b.Keyspaces[0].Files
		want := w.states[files[0].Index]
		if len(files) != len(want) {
			return fmt.Errorf("backup %s has %d files, want %d", e.Name, len(files), len(want))
		}
		for i, f := range files {
			if got, err := readFile(w.ctx(), b, &f); err != nil || !bytes.Equal(got, want[i]) {
				return fmt.Errorf("file %d of backup %s: %d bytes, want %d, %w", i, e.Name, len(got), len(want[i]), err)
			}
		}
	}
	var all []string
	for name, durable := range w.good {
		if durable {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	for _, name := range all[max(0, len(all)-goodMin):] {
		if !here[name] {
			return fmt.Errorf("backup %s, one of the newest, is gone: there are %v", name, here)
		}
	}
	return nil
}

func readFile(ctx context.Context, b *Backup, f *File) ([]byte, error) {
	in, err := b.Open(ctx, f)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(in)
}

// planned is what happens in a step: processes that run at once.
type planned struct {
	pause    time.Duration // before it
	runs     []plannedRun
	powerCut bool // after it
}

type plannedRun struct {
	seed   uint64
	left   int // operations until it is killed
	slow   bool
	sweeps bool
	keep   Keep
}

func drawPlan(t *rapid.T) []planned {
	run := rapid.Custom(func(t *rapid.T) plannedRun {
		r := plannedRun{seed: rapid.Uint64().Draw(t, "seed"), left: math.MaxInt, slow: rapid.IntRange(0, 2).Draw(t, "slow") == 0}
		if rapid.IntRange(0, 2).Draw(t, "killed") == 0 {
			r.left = rapid.IntRange(1, 60).Draw(t, "operations")
		}
		if r.sweeps = rapid.IntRange(0, 2).Draw(t, "sweeps") == 0; r.sweeps {
			n := rapid.IntRange(0, 3)
			r.keep = Keep{n.Draw(t, "hours"), n.Draw(t, "days"), n.Draw(t, "weeks")}
		}
		return r
	})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) planned {
		return planned{
			pause:    time.Duration(rapid.IntRange(1, 40*3600).Draw(t, "seconds")) * time.Second,
			runs:     rapid.SliceOfN(run, 1, 3).Draw(t, "runs"),
			powerCut: rapid.Bool().Draw(t, "power cut"),
		}
	}), 1, 12).Draw(t, "plan")
}

// counts says how runs ended.
type counts struct {
	sync.Mutex
	backups, sweeps, killed, busy, late int
}

func (c *counts) note(err error, done *int) {
	c.Lock()
	defer c.Unlock()
	switch {
	case err == nil:
		*done++
	case errors.Is(err, errKilled):
		c.killed++
	case errors.Is(err, ErrBusy):
		c.busy++
	default:
		c.late++
	}
}

// Whatever happens to the processes that use an archive, each backup that is listed can be restored byte for byte:
//
//  1. a process is killed before, during or after any operation of the target, and the machine may lose its power;
//  2. up to three backups and sweeps run at once, in any order of their operations;
//  3. operations may take hours, so that claims become void;
//  4. no sweep deletes the two newest backups, and the last one leaves nothing that no backup needs.
func TestBackupsAreRestored(t *testing.T) {
	var c counts
	rapid.Check(t, func(rt *rapid.T) {
		plan := drawPlan(rt)
		var err error
		synctest.Test(t, func(*testing.T) { err = carryOut(newWorld(3), plan, &c) })
		if err != nil {
			rt.Fatal(err)
		}
	})
	t.Logf("%d backups, %d sweeps; %d runs were killed, %d found the archive in use, %d took too long", c.backups, c.sweeps, c.killed, c.busy, c.late)
	if c.backups == 0 || c.sweeps == 0 || c.killed == 0 || c.busy == 0 || c.late == 0 {
		t.Error("not everything happened")
	}
}

func carryOut(w *world, plan []planned, c *counts) error {
	if _, err := CreateArchive(w.ctx(), w.target, w.cluster.id, w.recipients); err != nil {
		return err
	}
	for _, step := range plan {
		time.Sleep(step.pause)
		var wg sync.WaitGroup
		for _, r := range step.runs {
			w.change(rand.New(rand.NewPCG(r.seed, 2)))
			p := newProcess(w.target, r.seed, r.left, r.slow)
			if r.sweeps {
				wg.Go(func() {
					a, err := w.archive(p)
					if err == nil {
						_, err = a.Prune(w.ctx(), r.keep, "")
					}
					c.note(err, &c.sweeps)
				})
				continue
			}
			run := w.backup(p)
			wg.Go(func() {
				_, err := run()
				c.note(err, &c.backups)
			})
		}
		wg.Wait()
		if step.powerCut {
			w.target.losePower()
		}
		if err := w.check(); err != nil {
			return err
		}
	}
	return w.leavesNothing()
}

// leavesNothing sweeps the archive once all claims are void, and checks that it has only what its backups need.
func (w *world) leavesNothing() error {
	time.Sleep(25 * time.Hour)
	if _, err := w.backup(w.target)(); err != nil { // no sweep deletes chunks while there is no backup
		return err
	}
	a, err := w.archive(w.target)
	if err != nil {
		return err
	}
	if _, err := a.Prune(w.ctx(), Keep{Hours: 1}, ""); err != nil {
		return err
	}
	if err := w.check(); err != nil {
		return err
	}
	want := map[string]bool{archiveFile: true}
	list, err := a.List(w.ctx())
	if err != nil || len(list) > goodMin {
		return fmt.Errorf("%d backups stay, %w", len(list), err)
	}
	for _, e := range list {
		want[manifestPath(e.Name)] = true
		for chunk := range e.Manifest.chunks {
			want[chunkPath(chunk)] = true
		}
	}
	for name := range w.target.copied() {
		if !want[name] {
			return fmt.Errorf("%s is left", name)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		return fmt.Errorf("%v are missing", want)
	}
	return nil
}
