package shard

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
)

// goroutinesOf returns the stacks of goroutines that run code of this module, except code of tests.
func goroutinesOf() map[string]string {
	b := make([]byte, 16<<20)
	all := map[string]string{}
	for _, stack := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
		if strings.Contains(stack, "countd/countd/") && !strings.Contains(stack, "testing.tRunner") && !strings.Contains(stack, "testing.(*T)") {
			id, _, _ := strings.Cut(stack, " [")
			all[id] = stack
		}
	}
	return all
}

// mustAddNone waits until every goroutine that is not in before has ended.
func mustAddNone(t *testing.T, before map[string]string) {
	t.Helper()
	left := ""
	deadline := time.Now().Add(eventuallyMax)
	for {
		left = ""
		for id, stack := range goroutinesOf() {
			if before[id] == "" {
				left = stack
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a goroutine is left: %s", left)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// mustBeFree checks that nobody listens at an address.
func mustBeFree(t *testing.T, addr string) {
	t.Helper()
	if conn, err := net.DialTimeout("tcp", addr, eventuallyMax); err == nil {
		conn.Close()
		t.Errorf("somebody listens at %s", addr)
	}
}

// Whatever stage of Open fails, Open:
//
//  1. returns the error;
//  2. leaves no goroutine;
//  3. closes the cluster port;
//  4. releases the directories: an Open without the fault then succeeds.
func TestOpenUndoesWhatItStarted(t *testing.T) {
	file := func(path string) func(t *testing.T, dir string, cfg *Config) func() {
		return func(t *testing.T, dir string, _ *Config) func() {
			at := filepath.Join(dir, path)
			mustDo(t, os.MkdirAll(filepath.Dir(at), 0o700))
			mustDo(t, os.WriteFile(at, []byte("in the way"), 0o600))
			return func() { mustDo(t, os.Remove(at)) }
		}
	}
	metric := func(name string) func(t *testing.T, dir string, cfg *Config) func() {
		return func(t *testing.T, _ string, cfg *Config) func() {
			mustDo(t, cfg.Metrics.Register(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "in the way"})))
			return func() {}
		}
	}
	for _, stage := range []struct {
		name  string
		fault func(t *testing.T, dir string, cfg *Config) (undo func())
	}{
		{"the metrics of writes", metric("countd_keys_refused_total")},
		{"the metrics of the node", metric("countd_log_clock_behind_seconds")},
		{"the directory", file("node")},
		{"the choice of a log store", func(t *testing.T, dir string, cfg *Config) func() {
			cfg.LogStore = storage.LogStoreShared
			mustDo(t, os.MkdirAll(cfg.Dir, 0o700))
			at := filepath.Join(cfg.Dir, "log-store")
			mustDo(t, os.WriteFile(at, []byte("countd log store 1: boltdb\n"), 0o600))
			return func() { mustDo(t, os.Remove(at)) }
		}},
		{"the log", file("node/log")},
		{"the metrics of the log", metric("countd_raft_log_bytes")},
		{"the metrics of memory", metric("countd_memory_needed_bytes")},
		{"the cold rows", file("node-cold")},
		{"the directories of replicas", func(t *testing.T, dir string, _ *Config) func() {
			at := filepath.Join(dir, "node", "00005")
			mustDo(t, os.MkdirAll(at, 0o700))
			mustDo(t, os.MkdirAll(at+".3", 0o700))
			return func() { mustDo(t, errors.Join(os.Remove(at), os.Remove(at+".3"))) }
		}},
		{"the catalog's group", file("node/00000")},
		{"the metrics of the cluster", metric("countd_replicas")},
	} {
		t.Run(stage.name, func(t *testing.T) {
			before := goroutinesOf()
			dir := t.TempDir()
			cfg := memberConfig(t, filepath.Join(dir, "node"), 1, 1)
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			mustDo(t, err)
			cfg.Listener, cfg.ClusterAddr = listener, listener.Addr().String()
			undo := stage.fault(t, dir, &cfg)
			n, err := Open(cfg)
			if err == nil {
				mustStop(t, n)
				t.Fatal("it was opened")
			}
			listener.Close() // if Open fails, the caller closes it
			mustAddNone(t, before)
			mustBeFree(t, cfg.ClusterAddr)

			undo()
			cfg.Listener, cfg.ClusterAddr, cfg.Metrics = nil, "127.0.0.1:0", prometheus.NewRegistry()
			n, err = Open(cfg)
			mustDo(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
			defer cancel()
			mustDo(t, n.WaitReady(ctx))
			mustStop(t, n)
			mustAddNone(t, before)
		})
	}
}

// Close:
//
//  1. refuses requests first;
//  2. waits for the node's loops, then closes the shards' groups, the catalog's group, the server
//     of calls, the calls to other nodes, then log and port;
//  3. leaves no goroutine and no lock.
func TestNodeClosesInOrder(t *testing.T) {
	before := goroutinesOf()
	dir := t.TempDir()
	cfg := memberConfig(t, dir, 1, 1)
	entered, served := make(chan struct{}), make(chan struct{})
	cfg.Handlers = map[string]Handler{
		"hold": func(context.Context, []byte) ([]byte, error) { close(entered); <-served; return nil, nil },
		"echo": must.Echo,
	}
	n, err := Open(cfg)
	mustDo(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
	defer cancel()
	mustDo(t, n.WaitReady(ctx))
	shard, addr := n.registry.shardOf(1).replica.Load().group, n.mux.Addr().String()

	mux, err := rpc.ListenMux(rpc.MuxConfig{Addr: "127.0.0.1:0", ClusterID: clusterIDOf(t)})
	mustDo(t, err)
	other, err := rpc.NewCalls(rpc.CallsConfig{Mux: mux, Lookup: func(string) (string, bool) { return addr, true }})
	mustDo(t, err)
	held := make(chan error, 1)
	go func() { _, err := other.Call(ctx, cfg.NodeKey, "hold", nil); held <- err }()
	<-entered

	looping, asking := make(chan struct{}), make(chan struct{})
	n.running.Go(func() { <-looping })
	n.asking.Go(func() { <-asking })
	releaseShard := shard.Hold() // as if a proposal were on its way to raft
	releaseCatalog := n.registry.meta.Hold()
	stray := raftstore.ReplicaID{Group: 1, Number: 1 << 40}
	logOpen := func() bool {
		stray.Number++
		_, err := n.log.Replica(stray) // succeeds only while the log is open, because it writes to the log
		return !errors.Is(err, raftstore.ErrClosed)
	}

	closed := make(chan error, 1)
	go func() { closed <- n.Close(ctx) }()
	eventually(t, "requests are refused", func() bool { return errors.Is(n.Ready(), errs.ErrDraining) })
	if n.registry.shardOf(2).replica.Load().group.Closing() {
		t.Error("a group closes before the node's loops have ended")
	}
	close(looping)
	eventually(t, "a shard's group is closed", n.registry.shardOf(2).replica.Load().group.Closed)
	if n.registry.meta.Closing() || shard.Closed() {
		t.Error("the catalog's group closes before all of the shards'")
	}
	releaseShard()
	eventually(t, "the shards' groups are closed", shard.Closed)
	eventually(t, "the catalog's group closes", n.registry.meta.Closing)
	// Calls are served until the catalog's group is closed.
	_, err = other.Call(testContext(t), cfg.NodeKey, "echo", nil)
	mustDo(t, err)
	releaseCatalog()
	eventually(t, "the catalog's group is closed", n.registry.meta.Closed)
	eventually(t, "calls are refused", func() bool {
		_, err := other.Call(ctx, cfg.NodeKey, "echo", nil)
		return err != nil
	})
	if !logOpen() {
		t.Error("the log is closed before calls have ended")
	}
	close(served)
	<-held
	if !logOpen() {
		t.Error("the log is closed before questions to other nodes have ended")
	}
	select {
	case err := <-closed:
		t.Errorf("Close returned %v while a question is under way", err)
	default:
	}
	close(asking)
	mustDo(t, <-closed)
	if logOpen() {
		t.Error("the log is open")
	}
	mustBeFree(t, addr)
	other.Close()
	mustDo(t, mux.Close())
	mustAddNone(t, before)
	cfg.Metrics = prometheus.NewRegistry()
	n, err = Open(cfg)
	mustDo(t, err)
	mustStop(t, n)
}

// A Close that does not end in time returns its context's error. The shutdown continues
// in the background: the log stays open for a group that may still write to it.
func TestCloseLeavesTheLogToAGroupThatHasNotEnded(t *testing.T) {
	t.Parallel()
	n, err := Open(memberConfig(t, t.TempDir(), 1, 1))
	mustDo(t, err)
	mustDo(t, n.WaitReady(testContext(t)))
	shard := n.registry.shardOf(1).replica.Load().group
	releaseShard := shard.Hold()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := n.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close returned %v", err)
	}
	eventually(t, "the port is closed", func() bool {
		conn, err := net.Dial("tcp", n.mux.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if _, err := n.log.Replica(raftstore.ReplicaID{Group: 1, Number: 1 << 40}); err != nil {
		t.Errorf("the log: %v", err)
	}
	releaseShard()
	eventually(t, "the group ends", shard.Closed)
	mustDo(t, errors.Join(n.log.Close(), n.cold.Close()))
}

func clusterIDOf(t *testing.T) [16]byte {
	t.Helper()
	id, err := hex.DecodeString(testClusterID)
	mustDo(t, err)
	return [16]byte(id)
}
