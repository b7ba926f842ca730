package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/stream"
)

// sumFSM adds the entries, 8 little-endian bytes each, and counts them.
type sumFSM struct {
	mu struct {
		sync.Mutex
		sum, entries uint64
	}
	restoreErr, persistErr error
}

var _ raft.BatchingFSM = (*sumFSM)(nil)

var errNotANumber = errors.New("not a number")

func (f *sumFSM) Apply(entry *raft.Log) any { return f.ApplyBatch([]*raft.Log{entry})[0] }

func (f *sumFSM) ApplyBatch(entries []*raft.Log) []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	answers := make([]any, len(entries))
	for i, e := range entries {
		switch {
		case e.Type != raft.LogCommand:
		case len(e.Data) < 8:
			answers[i] = errNotANumber
		default:
			f.mu.sum += binary.LittleEndian.Uint64(e.Data)
			f.mu.entries++
			answers[i] = f.mu.sum
		}
	}
	return answers
}

func (f *sumFSM) state() (sum, entries uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.sum, f.mu.entries
}

func (f *sumFSM) Snapshot() (raft.FSMSnapshot, error) {
	sum, entries := f.state()
	b := binary.LittleEndian.AppendUint64(nil, sum)
	return sumSnapshot{binary.LittleEndian.AppendUint64(b, entries), f.persistErr}, nil
}

func (f *sumFSM) Restore(state io.ReadCloser) error {
	if f.restoreErr != nil {
		return f.restoreErr
	}
	b, err := io.ReadAll(state)
	if err != nil {
		return err
	}
	if len(b) != 16 {
		return fmt.Errorf("a snapshot of %d bytes", len(b))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.sum, f.mu.entries = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	return nil
}

type sumSnapshot struct {
	bytes []byte
	err   error
}

func (s sumSnapshot) Persist(sink raft.SnapshotSink) error {
	if s.err != nil {
		return s.err
	}
	_, err := sink.Write(s.bytes)
	return err
}

func (sumSnapshot) Release() {}

// appendsOf holds the streams of each Mux.
var appendsOf sync.Map

// testStreams returns the streams of a Mux, and creates them if necessary.
func testStreams(t *testing.T, mux *rpc.Mux) *stream.Streams {
	t.Helper()
	if a, made := appendsOf.Load(mux); made {
		return a.(*stream.Streams)
	}
	a := stream.New(stream.Config{
		Mux: mux, Lookup: func(string) (string, bool) { return "", false },
	})
	appendsOf.Store(mux, a)
	t.Cleanup(func() { appendsOf.Delete(mux); a.Close() })
	return a
}

// testConfig returns the configuration of a group that must not fail.
func testConfig(t *testing.T, mux *rpc.Mux, id string) Config {
	t.Helper()
	return Config{
		Dir: t.TempDir(), Group: 7, NodeID: id, FSM: &sumFSM{}, Mux: mux, Streams: testStreams(t, mux),
		Fatal: func(err error) { t.Errorf("%s: %v", id, err) },
		Timing: Timing{
			Heartbeat: 300 * time.Millisecond, Election: 300 * time.Millisecond,
			Lease: 200 * time.Millisecond, Commit: 20 * time.Millisecond,
		},
	}
}

func mustOpen(t *testing.T, cfg Config) *Replica {
	t.Helper()
	g, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, g) })
	return g
}

func mustClose(t *testing.T, g *Replica) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
	defer cancel()
	if err := g.Close(ctx, false); err != nil {
		t.Error(err)
	}
}

func mustBeReady(t *testing.T, g *Replica) {
	t.Helper()
	eventually(t, "the group is ready", func() bool { return g.Ready() == nil })
}

func number(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

func mustAdd(t *testing.T, g *Replica, n uint64) uint64 {
	t.Helper()
	future := g.Apply(number(n))
	if err := future.Error(); err != nil {
		t.Fatal(err)
	}
	return future.Response().(uint64)
}

// timingOfAnHour has long timeouts, so that a group that waits for a timeout does not become ready
// during a test.
var timingOfAnHour = Timing{Heartbeat: time.Hour, Election: time.Hour, Lease: time.Minute, Commit: time.Minute}

func TestSoleVoterIsReadyAtOnce(t *testing.T) { eachStore(t, testSoleVoterIsReadyAtOnce) }

func testSoleVoterIsReadyAtOnce(t *testing.T, store storage.LogStore) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.LogStore = store
	cfg.Initial, cfg.Timing = aloneIn(cfg), timingOfAnHour
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	if !g.SoleVoter() {
		t.Error("soleVoter is false")
	}
	if got := mustAdd(t, g, 5); got != 5 {
		t.Errorf("sum %d", got)
	}
	want := Stats{Role: "leader", Leader: "n1", Term: 2, Applied: 4, Commit: 4}
	eventually(t, "the stats are right", func() bool { return g.Stats() == want })
}

func TestApplyHandsAnErrorValueThrough(t *testing.T) {
	cfg := testConfig(t, testMux(t), "n1")
	cfg.Initial = aloneIn(cfg)
	g := mustOpen(t, cfg)
	mustBeReady(t, g)
	future := g.Apply([]byte("bad"))
	if err := future.Error(); err != nil {
		t.Fatal(err)
	}
	if got, ok := future.Response().(error); !ok || !errors.Is(got, errNotANumber) {
		t.Errorf("response %v", got)
	}
}

func TestRestartKeepsState(t *testing.T) { eachStore(t, testRestartKeepsState) }

func testRestartKeepsState(t *testing.T, store storage.LogStore) {
	for _, test := range []struct {
		name     string
		snapshot bool
	}{{"from the log", false}, {"from snapshot and log", true}} {
		t.Run(test.name, func(t *testing.T) {
			cfg := testConfig(t, testMux(t), "n1")
			cfg.LogStore = store
			cfg.Initial = aloneIn(cfg)
			want := uint64(0)
			for round := range 3 {
				fsm := &sumFSM{}
				cfg.FSM = fsm
				g := mustOpen(t, cfg)
				mustBeReady(t, g)
				if sum, _ := fsm.state(); sum != want {
					t.Fatalf("round %d: sum %d, want %d", round, sum, want)
				}
				for n := range uint64(20) {
					want += n
					if got := mustAdd(t, g, n); got != want {
						t.Fatalf("round %d: sum %d, want %d", round, got, want)
					}
					if n == 10 && test.snapshot {
						if err := g.snapshotter.Take(); err != nil {
							t.Fatal(err)
						}
					}
				}
				mustClose(t, g)
				if err := g.Apply(number(1)).Error(); !errs.NeverProposed(err) {
					t.Errorf("apply after close: %v", err)
				}
			}
		})
	}
}

func TestNineGroupsAreReadyAtOnce(t *testing.T) { eachStore(t, testNineGroupsAreReadyAtOnce) }

func testNineGroupsAreReadyAtOnce(t *testing.T, store storage.LogStore) {
	mux := testMux(t)
	base := testConfig(t, mux, "n1")
	base.LogStore = store
	base.Initial, base.Timing = aloneIn(base), timingOfAnHour
	var groups []*Replica
	for i := range uint32(9) {
		cfg := base
		cfg.Group, cfg.FSM, cfg.Dir = i, &sumFSM{}, fmt.Sprintf("%s/%d", base.Dir, i)
		groups = append(groups, mustOpen(t, cfg))
	}
	for _, g := range groups {
		mustBeReady(t, g)
	}
}

// aloneIn returns the replica as the only voter of a new group.
func aloneIn(cfg Config) []Member { return []Member{{cfg.ID(), cfg.Mux.Addr().String()}} }

func mustLayer(t *testing.T, m *rpc.Mux, group uint32) raft.StreamLayer {
	t.Helper()
	l, err := m.Layer(group, "n1.0")
	mustDo(t, err)
	return l
}
