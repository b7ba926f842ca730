package replica

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
)

// slowConn writes slowRate bytes a second.
type slowConn struct{ net.Conn }

const slowRate = 16 << 20

func (c slowConn) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		piece := p[:min(len(p), 32<<10)]
		time.Sleep(time.Duration(len(piece)) * time.Second / slowRate)
		var m int
		m, err = c.Conn.Write(piece)
		n, p = n+m, p[m:]
	}
	return n, err
}

// heldBytes is the number of bytes of a snapshot that a connection sends before a snapshotGate
// slows it. No other connection of a test sends as much.
const heldBytes = 1 << 20

// snapshotGate slows snapshots until it is open. A slowed snapshot does not end, but its pauses are
// too short for the follower to close the connection.
type snapshotGate struct {
	begun atomic.Int64 // number of connections that have sent heldBytes
	open  atomic.Bool
}

type gatedConn struct {
	net.Conn
	gate *snapshotGate
	sent int // raft sends one call at a time
}

func (c *gatedConn) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		piece := p
		if c.sent >= heldBytes && !c.gate.open.Load() {
			time.Sleep(50 * time.Millisecond)
			piece = p[:min(len(p), 4<<10)]
		}
		var m int
		m, err = c.Conn.Write(piece)
		if c.sent < heldBytes && c.sent+m >= heldBytes {
			c.gate.begun.Add(1)
		}
		c.sent, n, p = c.sent+m, n+m, p[m:]
	}
	return n, err
}

// muxOf returns a Mux that passes each connection that it dials through wrap.
func muxOf(t *testing.T, wrap func(net.Conn) net.Conn) *rpc.Mux {
	t.Helper()
	return rafttest.Mux(t, rpc.MuxConfig{Dial: func(ctx context.Context, address, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return wrap(c), nil
	}})
}

// behindSnapshot returns a group of three. n2 and n3 are closed, and n3 lacks entries. n1 and n2
// have these entries only in a snapshot, whose size in bytes is state.
func behindSnapshot(t *testing.T, state int, wrap func(net.Conn) net.Conn) *replicas {
	t.Helper()
	r := &replicas{}
	for i := range 3 {
		cfg := testConfig(t, muxOf(t, wrap), fmt.Sprintf("n%d", i+1))
		cfg.LogStore, cfg.FSM = storage.LogStoreBoltDB, &largeFSM{bytes: state}
		if i == 0 {
			cfg.Initial = aloneIn(cfg)
		}
		r.cfgs, r.groups = append(r.cfgs, cfg), append(r.groups, mustOpen(t, cfg))
	}
	mustBeReady(t, r.groups[0])
	for _, cfg := range r.cfgs[1:] {
		r.addVoter(t, cfg)
	}
	mustClose(t, r.groups[2])
	for range 10 {
		r.add(t, 1, 2)
	}
	last := r.groups[r.leader(t, 2)].LastIndex()
	for _, g := range r.groups[:2] {
		eventually(t, "it has all entries", func() bool { return g.AppliedIndex() >= last })
		mustDo(t, g.settings.change(func(conf *raft.ReloadableConfig) { conf.TrailingLogs = 1 }))
		eventually(t, "it takes a snapshot of them", func() bool {
			return g.raft.Snapshot().Error() == nil && g.snaps.NewestIndex() >= last
		})
	}
	mustClose(t, r.groups[1])
	eventually(t, "n1 leads no more", func() bool { return !r.groups[0].Leads() && r.groups[0].Leader() == "" })
	return r
}

// openLarge opens replica i again.
func (r *replicas) openLarge(t *testing.T, i, state int) *Replica {
	t.Helper()
	r.cfgs[i].FSM = &largeFSM{bytes: state}
	r.groups[i] = mustOpen(t, r.cfgs[i])
	return r.groups[i]
}

// Two of three voters are alive, and one of them needs a snapshot. The leader needs that voter's
// answers. It gets none while it sends the snapshot, and loses its lease several times. The two
// voters elect a leader all the same.
func TestMajorityThatNeedsASnapshot(t *testing.T) {
	t.Parallel()
	const state = slowRate // the snapshot takes a second, which is five leases
	r := behindSnapshot(t, state, func(c net.Conn) net.Conn { return slowConn{c} })
	back := r.openLarge(t, 2, state)
	mustBeReady(t, r.groups[0])
	if back.snaps.NewestIndex() == 0 {
		t.Error("n3 needed no snapshot")
	}
}

// A third voter comes and goes while n3 receives the snapshot. Each time the voter elects the same
// leader, and the leader continues the snapshot that it has begun.
func TestSnapshotOutlastsElections(t *testing.T) {
	t.Parallel()
	const state = 6 * snapshotBytesPerTimeout // so large that n1 ends the call only after a minute
	var gate snapshotGate
	r := behindSnapshot(t, state, func(c net.Conn) net.Conn { return &gatedConn{Conn: c, gate: &gate} })
	mustClose(t, r.groups[0]) // ends a call that n1 began while n3 was closed: n3 could otherwise receive that call slowly, and no other
	before := gate.begun.Load()
	left, back := r.openLarge(t, 0, state), r.openLarge(t, 2, state)
	r.cfgs[1].Timing.Heartbeat, r.cfgs[1].Timing.Election = time.Hour, time.Hour // n2 never campaigns
	for range 3 {
		n2 := r.openLarge(t, 1, state)
		mustBeReady(t, left)
		eventually(t, "n1 sends the snapshot", func() bool { return gate.begun.Load() > before })
		mustClose(t, n2)
		eventually(t, "n1 leads no more", func() bool { return !left.Leads() })
	}
	gate.open.Store(true)
	eventually(t, "n3 has the snapshot", func() bool { return back.snaps.NewestIndex() > 0 })
	if n := gate.begun.Load() - before; n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}
