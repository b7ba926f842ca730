package replica

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"

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

func slowMux(t *testing.T) *rpc.Mux {
	t.Helper()
	m, err := rpc.ListenMux(rpc.MuxConfig{Addr: "127.0.0.1:0", ClusterID: [16]byte{1, 2, 3}, Dial: func(ctx context.Context, address, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return slowConn{c}, err
	}})
	mustDo(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Two of three voters live, and one of them needs a snapshot. The leader needs the other's answers,
// gets none while it sends the snapshot, and loses its lease several times over. They get a leader
// all the same.
func TestMajorityThatNeedsASnapshot(t *testing.T) {
	t.Parallel()
	const state = slowRate // a second, five leases
	r := &replicas{}
	for i := range 3 {
		cfg := testConfig(t, slowMux(t), fmt.Sprintf("n%d", i+1))
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
	mustClose(t, r.groups[2]) // this replica is away, and the others cut off the log that it lacks
	for range 10 {
		r.add(t, 1, 2)
	}
	last := r.groups[r.leader(t, 2)].LastIndex()
	for _, g := range r.groups[:2] {
		eventually(t, "it has all entries", func() bool { return g.AppliedIndex() >= last })
		mustDo(t, g.reload(func(conf *raft.ReloadableConfig) { conf.TrailingLogs = 1 }))
		mustDo(t, g.raft.Snapshot().Error())
	}
	mustClose(t, r.groups[1])
	left := r.groups[0]
	eventually(t, "n1 leads no more", func() bool { return !left.Leads() && left.Leader() == "" })
	cfg := r.cfgs[2]
	cfg.FSM = &largeFSM{bytes: state}
	back := mustOpen(t, cfg)
	eventually(t, "n1 leads n3", func() bool { return left.Ready() == nil })
	if back.snaps.NewestIndex() == 0 {
		t.Error("n3 needed no snapshot")
	}
}
