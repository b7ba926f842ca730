package shard

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// openCuttable opens three nodes. cut cuts the connections between two of them, by number.
func openCuttable(t *testing.T) (all []*Node, cut func(a, b int)) {
	t.Helper()
	var configs []Config
	var proxies [3][3]*must.Cable // by who dials and who is dialled
	for to := range proxies {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		mustDo(t, err)
		cfg := memberConfig(t, t.TempDir(), to+1, 3)
		cfg.Listener, cfg.ClusterAddr = listener, listener.Addr().String()
		configs = append(configs, cfg)
		for from := range proxies {
			proxies[from][to] = must.NewCable(t, listener.Addr().String())
		}
	}
	for from, cfg := range configs {
		cfg.LiveAddr = func(node string) string {
			to := slices.IndexFunc(configs, func(c Config) bool { return c.NodeKey == node })
			return proxies[from][to].Addr()
		}
		all = append(all, joinAs(t, all, cfg))
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for _, n := range all {
		mustDo(t, n.WaitReady(ctx))
	}
	return all, func(a, b int) {
		proxies[a][b].Close()
		proxies[b][a].Close()
	}
}

// Two nodes do not reach each other, but both reach a third. One of them writes to a shard that the
// other leads, and reads it.
func TestWritesGoThroughAThirdNode(t *testing.T) {
	t.Parallel()
	all, cut := openCuttable(t)
	leader := -1
	eventually(t, "the shard has a leader", func() bool {
		leader = slices.IndexFunc(all, func(n *Node) bool {
			_, err := n.registry.groups.Load().byFirst[n.Keyspace("posts").FirstGroup].all[0].led()
			return err == nil
		})
		return leader >= 0
	})
	far := (leader + 1) % len(all)
	n, id := all[far], uint64(0)
	write := func(want int64) *Write {
		w := once(&Write{Ops: counters.Ops{addTo(id, 0, 1)}, Width: 4, Rows: make([]int64, 4), Deadline: soon()})
		mustDo(t, n.Write(n.Keyspace("posts"), w))
		if w.Rows[0] != want {
			t.Errorf("row %v after %d writes", w.Rows, want)
		}
		return w
	}
	write(1)
	cut(far, leader)
	for i := int64(2); i < 8; i++ {
		opt := ReadOptions{Consistency: Linearizable, Token: write(i).Token}
		if row := mustGet(t, n, n.Keyspace("posts"), opt, id); row[0] != i {
			t.Errorf("read %v after %d writes", row, i)
		}
	}
}

// The error of a relayed call means the same to its caller as that of a direct call.
func TestRelayedCallsTellTheirFate(t *testing.T) {
	mustLeaveNothing(t)
	var nodes callNodes
	entered := make(chan struct{}, 1)
	a, _ := nodes.Node(t, "a", nil, nil)
	var relay router
	relay.calls, _ = nodes.Node(t, "b", map[string]rpc.Handler{"relay": func(ctx context.Context, request []byte) ([]byte, error) {
		return relay.relay(ctx, "c", string(request), nil)
	}}, nil)
	nodes.Node(t, "c", map[string]rpc.Handler{
		"answer": func(context.Context, []byte) ([]byte, error) { return []byte("done"), nil },
		"refuse": func(context.Context, []byte) ([]byte, error) { return nil, rpc.ErrLedBy("d") },
		"full":   func(context.Context, []byte) ([]byte, error) { return nil, errs.ErrOverloaded },
		"fail":   func(context.Context, []byte) ([]byte, error) { return nil, errors.New("a fault") },
		"hang": func(ctx context.Context, _ []byte) ([]byte, error) {
			entered <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}, nil)
	addr, _ := nodes.Lookup("c")
	proxy := must.NewCable(t, addr)
	nodes.Put("c", proxy.Addr())
	call := func(method string) error {
		answer, err := a.Call(testContext(t), "b", "relay", []byte(method))
		if err == nil && string(answer) != "done" {
			t.Errorf("%s: the answer is %q", method, answer)
		}
		return err
	}
	mustDo(t, call("answer"))
	if err := call("refuse"); !errors.Is(rpc.Fate(err), errs.ErrNoLeader) || rpc.LeaderHint(err) != "d" {
		t.Errorf("one that does not lead: %v", err)
	}
	if err := call("full"); !errors.Is(rpc.Fate(err), errs.ErrOverloaded) {
		t.Errorf("one that is full: %v", err)
	}
	if err := call("fail"); !errors.Is(rpc.Fate(err), errs.ErrOutcomeUnknown) {
		t.Errorf("a fault: %v", err)
	}
	lost := make(chan error, 1)
	go func() { lost <- call("hang") }()
	<-entered
	proxy.Cut()
	if err := <-lost; !errors.Is(rpc.Fate(err), errs.ErrOutcomeUnknown) {
		t.Errorf("a connection that was lost behind the relay: %v", err)
	}
	proxy.Close()
	eventually(t, "a call that is not sent behind the relay is certain", func() bool {
		err := rpc.Fate(call("answer"))
		return errors.Is(err, errs.ErrNoLeader) && !errors.Is(err, errs.ErrOutcomeUnknown)
	})
}
