package shard

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// A connection over which a peer asks: 1. waits for a request for as long as it
// takes, the first and the next; 2. takes one that comes slowly; 3. fails, and goes
// on failing, when one stops on its way.
func TestRequestThatStopsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		layer := newMuxLayer(nil, 7, "n1.0")
		kept, err := layer.keep(here)
		mustDo(t, err)
		c := &servedConn{muxConn: kept}
		go func() {
			for range 2 {
				time.Sleep(time.Hour)
				for range 10 {
					_, _ = there.Write([]byte("part"))
					time.Sleep(requestSilenceMax - time.Millisecond)
				}
				_, _ = io.ReadFull(there, make([]byte, 2))
			}
			_, _ = there.Write([]byte("part"))
		}()
		part := make([]byte, 4)
		for range 2 {
			for range 10 {
				_, err := io.ReadFull(c, part)
				mustDo(t, err)
			}
			_, err := c.Write([]byte("ok"))
			mustDo(t, err)
		}
		_, err = io.ReadFull(c, part)
		mustDo(t, err)
		began := time.Now()
		if _, err := c.Read(part); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != requestSilenceMax {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := c.Read(part); err == nil || time.Since(began) != requestSilenceMax {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := there.Write(part); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("its peer writes on: %v", err)
		}
	})
}

// A leader that freezes while it sends a snapshot, whose connections stay open,
// does not keep the other two of three from electing another.
func TestLeaderFreezesInASnapshot(t *testing.T) {
	r := newReplicas(t, storage.LogStoreBoltDB)
	r.add(t, 1, -1)
	r.mustAgree(t, -1)
	old := r.leader(t, -1)
	leader, follower := r.groups[old], r.groups[(old+1)%3]

	// The frozen leader's connection is of a Mux of its own, which stays open.
	layer, err := testMux(t).Layer(leader.cfg.Group, "n9.0")
	mustDo(t, err)
	trans := newRaftTransport(layer, nil, 0, leader.cfg.raftLogger())
	t.Cleanup(func() { mustDo(t, trans.Close()) })
	addr := raft.ServerAddress(r.cfgs[old].Mux.Addr().String())
	args := &raft.InstallSnapshotRequest{
		RPCHeader:       raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(leader.cfg.NodeID), Addr: []byte(addr)},
		SnapshotVersion: raft.SnapshotVersionMax, Term: leader.raft.CurrentTerm(), Leader: []byte(addr),
		LastLogIndex: leader.raft.LastIndex() + 1, LastLogTerm: leader.raft.CurrentTerm(),
		Configuration: raft.EncodeConfiguration(leader.configuration()), ConfigurationIndex: 1, Size: 1 << 30,
	}
	state, thaw := io.Pipe()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		var resp raft.InstallSnapshotResponse
		_ = trans.InstallSnapshot(raft.ServerID(follower.cfg.NodeID), raft.ServerAddress(follower.cfg.Mux.Addr().String()), args, &resp, state)
	}()
	_, err = thaw.Write(make([]byte, 1<<20))
	mustDo(t, err)
	eventually(t, "the follower takes the snapshot", func() bool {
		unfinished, err := filepath.Glob(filepath.Join(follower.cfg.Dir, "snapshots", "*"+".tmp"))
		return err == nil && len(unfinished) > 0
	})
	mustClose(t, leader)
	r.add(t, 1, old)
	r.mustAgree(t, old)
	mustDo(t, thaw.CloseWithError(io.ErrUnexpectedEOF))
	<-sent
}
