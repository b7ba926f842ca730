package replica

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/storage"
)

// endFSM is a state machine whose restore waits before it reads the end of a snapshot.
type endFSM struct {
	raftfsm.Machine
	bytes          int
	began, release chan struct{}
}

type endReader struct {
	io.ReadCloser
	f    *endFSM
	read int
}

func (r *endReader) Read(p []byte) (int, error) {
	if r.read == r.f.bytes {
		close(r.f.began)
		<-r.f.release
	}
	n, err := r.ReadCloser.Read(p)
	r.read += n
	return n, err
}

func (f *endFSM) Restore(state io.ReadCloser) error {
	return f.Machine.Restore(&endReader{ReadCloser: state, f: f})
}

// A follower may be closed right before its restore reads the end of the snapshot. No disk is to
// blame, so Close returns no error: an error of Close ends the process.
func TestCloseAtTheEndOfARestore(t *testing.T) {
	other := kinds.All.New(codec.KindBoard, raftfsm.Places{})
	state := rafttest.Persisted(t, other)
	f := &endFSM{Machine: kinds.All.New(codec.KindBoard, raftfsm.Places{}), bytes: len(state), began: make(chan struct{}), release: make(chan struct{})}
	p := playLeaderOf(t, storage.LogStoreShared, func(cfg *Config) {
		cfg.Initial, cfg.FSM = []Member{{"n2", "a2"}, {"n1", "a1"}, {"n3", "a3"}}, f
	})
	go func() {
		_ = p.trans.InstallSnapshot("n1", p.to(), &raft.InstallSnapshotRequest{
			RPCHeader: headerOf("n2"), SnapshotVersion: raft.SnapshotVersionMax, Term: 2, LastLogIndex: 20, LastLogTerm: 2,
			Configuration: raft.EncodeConfiguration(raft.Configuration{}), ConfigurationIndex: 1, Size: int64(len(state)),
		}, &raft.InstallSnapshotResponse{}, bytes.NewReader(state))
	}()
	<-f.began
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
		defer cancel()
		closed <- p.Close(ctx, false)
	}()
	eventually(t, "the close interrupts the restore", func() bool { return p.stop.Usable() != nil })
	close(f.release)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
