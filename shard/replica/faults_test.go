package replica

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

var faultRuns = flag.Int("fault-runs", 4, "runs of TestReplicasWithFaults, each of its own seed and a few seconds")

// A run has faultSteps faults. After each it pauses for up to faultPauseMax.
const (
	faultSteps    = 80
	faultPauseMax = 100 * time.Millisecond
)

// Three replicas go through full disks, changes of members, handovers, snapshots and reopens. A
// seed decides their order. A replica on a full disk can be closed. Once all disks have space, the
// group has a leader and every replica has all accepted entries.
func TestReplicasWithFaults(t *testing.T) {
	for seed := range uint64(*faultRuns) {
		t.Run(fmt.Sprint(seed+1), func(t *testing.T) {
			t.Parallel()
			f := newFaultRun(t, seed+1)
			for range faultSteps {
				f.step()
				f.reopen()
				if f.rng.IntN(2) == 0 {
					f.propose()
				}
				time.Sleep(time.Duration(f.rng.Int64N(int64(faultPauseMax))))
			}
			for _, s := range f.stores {
				s.set(nil, nil)
			}
			eventually(t, "a leader commits an entry", func() bool {
				f.reopen()
				for _, g := range f.groups {
					if g.Ready() == nil && g.Apply(number(1)).Error() == nil {
						f.accepted++
						return true
					}
				}
				return false
			})
			f.mustAgree(t, -1)
		})
	}
}

// faultRun is a run of TestReplicasWithFaults. If replica 0 lacks the disk space to store a change
// of members, it waits for space, as the catalog's replica does. Replicas 1 and 2 are opened again
// in that case.
type faultRun struct {
	*replicas
	t      *testing.T
	rng    *rand.Rand
	stores []*faultyStores
	due    [3]atomic.Bool // the replica asks to be opened again
}

func newFaultRun(t *testing.T, seed uint64) *faultRun {
	r, stores := newFaultyReplicas(t, 3)
	f := &faultRun{replicas: r, t: t, rng: rand.New(rand.NewPCG(seed, 1)), stores: stores}
	for i := 1; i < 3; i++ {
		r.cfgs[i].Reopen = func() { f.due[i].Store(true) }
		r.groups[i].cfg.Reopen = r.cfgs[i].Reopen
	}
	r.add(t, 1, -1)
	r.mustAgree(t, -1)
	return f
}

// step makes one fault, or ends one.
func (f *faultRun) step() {
	i := f.rng.IntN(3)
	switch f.rng.IntN(8) {
	case 0, 1:
		f.stores[i].set(nil, errNoFile)
	case 2:
		f.stores[i].set(nil, nil)
	case 3: // close a leader that cannot commit
		for k, g := range f.groups {
			if g.Leads() {
				i = k
			} else {
				f.stores[k].set(nil, errNoFile)
			}
		}
		f.propose()
		f.again(i)
	case 4:
		f.stores[i].set(nil, errNoFile)
		addr := raft.ServerAddress(fmt.Sprintf("127.0.0.1:%d", 1+f.rng.IntN(5)))
		f.leaders(func(g *Replica) { g.raft.AddNonvoter("other", addr, 0, time.Second) })
	case 5:
		f.leaders(func(g *Replica) { g.raft.RemoveServer("other", 0, time.Second) })
	case 6:
		to := f.groups[i]
		f.leaders(func(g *Replica) { _ = g.Transfer(Member{to.ID(), to.cfg.Mux.Addr().String()}) })
	case 7:
		for _, g := range f.groups {
			go func() { _ = g.snapshotter.Take() }()
		}
		if f.rng.IntN(2) == 0 {
			f.again(i)
		}
	}
}

// leaders makes every replica that leads do something, and does not wait for it.
func (f *faultRun) leaders(do func(*Replica)) {
	for _, g := range f.groups {
		if g.Leads() {
			go do(g)
		}
	}
}

// again closes a replica, even if its disk is full or hangs, and opens it on a disk with space.
func (f *faultRun) again(i int) {
	mustClose(f.t, f.groups[i])
	f.stores[i].set(nil, nil)
	f.fsms[i] = &sumFSM{}
	f.cfgs[i].FSM = f.fsms[i]
	g, err := startGroup(f.cfgs[i], f.stores[i])
	mustDo(f.t, err)
	f.groups[i] = g
	f.t.Cleanup(func() { mustClose(f.t, g) })
}

// reopen opens each replica again that has called Config.Reopen.
func (f *faultRun) reopen() {
	for i := range f.due {
		if f.due[i].Swap(false) {
			f.again(i)
		}
	}
}

// propose adds 1 at each leader, and does not wait for the outcome.
func (f *faultRun) propose() {
	for _, g := range f.groups {
		if g.Ready() == nil {
			f.unknown++
			g.Apply(number(1))
		}
	}
}
