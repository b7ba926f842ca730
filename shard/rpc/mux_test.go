package rpc

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

func mustLayer(t *testing.T, m *Mux, group uint32) raft.StreamLayer {
	t.Helper()
	l, err := m.Layer(group, "n1.0")
	mustDo(t, err)
	return l
}

func TestMuxHandsConnectionsToTheirGroups(t *testing.T) {
	a, b := testMux(t), testMux(t)
	for group := range uint32(3) {
		from, to := mustLayer(t, a, group), mustLayer(t, b, group)
		out, err := from.Dial(raft.ServerAddress(b.Addr().String()), time.Second)
		mustDo(t, err)
		in, err := to.Accept()
		mustDo(t, err)
		want := []byte{byte(group), 'x'}
		_, err = out.Write(want)
		mustDo(t, err)
		got := make([]byte, 2)
		if _, err := io.ReadFull(in, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("group %d: %q, %v", group, got, err)
		}
		mustDo(t, errors.Join(in.Close(), out.Close()))
	}
}

func TestMuxRefusesAGroupTwice(t *testing.T) {
	m := testMux(t)
	l := mustLayer(t, m, 1)
	if _, err := m.Layer(1, "n1.0"); err == nil {
		t.Error("attached twice")
	}
	mustDo(t, l.Close())
	mustDo(t, mustLayer(t, m, 1).Close())
	mustDo(t, m.Close())
	if _, err := m.Layer(1, "n1.0"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func mustBeClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	mustDo(t, conn.SetReadDeadline(time.Now().Add(must.BecomeMax)))
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open: %d bytes, %v", n, err)
	}
}

func TestMuxRefusesOtherConnections(t *testing.T) {
	cluster := [16]byte{1, 2, 3}
	good := appendPreface(nil, preface{kind: kindRaft, cluster: cluster, group: 1})
	for _, test := range []struct {
		name, reason string
		sent         []byte
	}{ // a connection without a cluster id, or for an unknown group, causes no warning
		{"http", "begins with", []byte("GET / HTTP/1.1\r\nHost: countd.example\r\n\r\n")},
		{"short", "cannot read", good[:10]},
		{"nothing", "cannot read", nil},
		{"checksum", "checksum", changed(good, prefaceBytes-1)},
		{"version", "version", changed(good, 4)},
		{"kind", "kind", appendPreface(nil, preface{kind: 9, cluster: cluster, group: 1})},
		{"cluster", "level=WARN msg=\"refused a connection from a node of another cluster\"", appendPreface(nil, preface{kind: kindRaft, cluster: [16]byte{9}, group: 1})},
		{"no cluster", "level=DEBUG msg=\"refused a cluster connection\"", appendPreface(nil, preface{kind: kindRaft, group: 1})},
		{"group of a call", "kind", appendPreface(nil, preface{kind: kindCall, cluster: cluster, group: 1})},
		{"cluster of a call", "cluster", appendPreface(nil, preface{kind: kindCall})},
		{"another node", "it is for another replica of the group", appendPreface(nil, preface{kind: kindRaft, cluster: cluster, group: 1, to: Addressee("n2.0")})},
		{"another replica", "it is for another replica of the group", appendPreface(nil, preface{kind: kindRaft, cluster: cluster, group: 1, to: Addressee("n1.0#3")})},
		{"a call to another node", "it is for another node", appendPreface(nil, preface{kind: kindCall, cluster: cluster, to: Addressee("n2.0")})},
		{"group", "level=DEBUG msg=\"refused a cluster connection\"", appendPreface(nil, preface{kind: kindRaft, cluster: cluster, group: 2})},
	} {
		t.Run(test.name, func(t *testing.T) {
			logged := &proctest.Buffer{}
			m, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", ClusterID: cluster, NodeKey: "n1.0", Logger: slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))})
			mustDo(t, err)
			defer m.Close()
			layer := mustLayer(t, m, 1)
			conn, err := net.Dial("tcp", m.Addr().String())
			mustDo(t, err)
			defer conn.Close()
			_, err = conn.Write(test.sent)
			mustDo(t, err)
			_ = conn.(*net.TCPConn).CloseWrite() // the connection may be closed by now
			mustBeClosed(t, conn)
			eventually(t, "the reason is logged", func() bool { return strings.Contains(logged.String(), test.reason) })
			if n := len(layer.(*muxLayer).accepts); n != 0 {
				t.Errorf("%d connections were handed over", n)
			}
		})
	}
}

func TestMuxBoundsWhatWaits(t *testing.T) {
	m := testMux(t)
	layer := mustLayer(t, m, 1)
	t.Run("for its preface", func(t *testing.T) {
		var conns []net.Conn
		for range prefaceConnsMax {
			conn, err := net.Dial("tcp", m.Addr().String())
			mustDo(t, err)
			defer conn.Close()
			conns = append(conns, conn)
		}
		eventually(t, "all are waited for", func() bool { return len(m.prefaces) == prefaceConnsMax })
		one, err := net.Dial("tcp", m.Addr().String())
		mustDo(t, err)
		defer one.Close()
		mustBeClosed(t, one)
		for _, conn := range conns {
			conn.Close()
		}
		eventually(t, "none is waited for", func() bool { return len(m.prefaces) == 0 })
	})
	t.Run("for its group", func(t *testing.T) {
		for range acceptQueueMax {
			conn, err := layer.Dial(raft.ServerAddress(m.Addr().String()), time.Second)
			mustDo(t, err)
			defer conn.Close()
		}
		eventually(t, "the queue is full", func() bool { return len(layer.(*muxLayer).accepts) == acceptQueueMax })
		one, err := layer.Dial(raft.ServerAddress(m.Addr().String()), time.Second)
		mustDo(t, err)
		defer one.Close()
		mustBeClosed(t, one)
	})
}

func TestMuxHandsCallsToOneListener(t *testing.T) {
	m := testMux(t)
	dial := func() net.Conn {
		conn, err := m.Dial(t.Context(), m.Addr().String(), "", kindCall, 0)
		mustDo(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	if m.Calls() != m.Calls() || m.Calls().Addr() != m.Addr() {
		t.Error("the listener differs")
	}
	out := dial()
	in, err := m.Calls().Accept()
	mustDo(t, err)
	defer in.Close()
	_, err = out.Write([]byte("x"))
	mustDo(t, err)
	b := make([]byte, 1)
	if n, err := in.Read(b); n != 1 || b[0] != 'x' {
		t.Errorf("read %q, %v", b, err)
	}
	var queued []net.Conn
	for range acceptQueueMax {
		queued = append(queued, dial())
	}
	eventually(t, "the queue is full", func() bool { return len(m.calls.accepts) == acceptQueueMax })
	mustBeClosed(t, dial())
	mustDo(t, m.Calls().Close())
	for _, conn := range queued {
		mustBeClosed(t, conn)
	}
	mustBeClosed(t, dial())
	if _, err := m.Calls().Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	_, err = in.Write([]byte("y"))
	mustDo(t, err)
	if n, err := out.Read(b); n != 1 {
		t.Errorf("what was accepted is closed: %v", err)
	}
	mustDo(t, m.Calls().Close())
}

func TestMuxCloseEndsEverything(t *testing.T) {
	m := testMux(t)
	layer := mustLayer(t, m, 1)
	out, err := layer.Dial(raft.ServerAddress(m.Addr().String()), time.Second)
	mustDo(t, err)
	in, err := layer.Accept()
	mustDo(t, err)
	silent, err := net.Dial("tcp", m.Addr().String())
	mustDo(t, err)
	defer silent.Close()
	eventually(t, "it is waited for", func() bool { return len(m.prefaces) == 1 })
	accepted := make(chan error)
	go func() { _, err := layer.Accept(); accepted <- err }()
	mustDo(t, m.Close())
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	for _, conn := range []net.Conn{in, out} {
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("Read: %v", err)
		}
	}
	mustBeClosed(t, silent)
	if _, err := layer.Dial(raft.ServerAddress(m.Addr().String()), time.Second); err == nil {
		t.Error("dialed")
	}
	mustDo(t, m.Close())
}

func TestMuxAdvertises(t *testing.T) {
	m, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", Advertise: "node-1.example:7401"})
	mustDo(t, err)
	defer m.Close()
	if got := mustLayer(t, m, 1).Addr().String(); got != "node-1.example:7401" {
		t.Errorf("address %s", got)
	}
}

func FuzzParsePreface(f *testing.F) {
	f.Add(appendPreface(nil, preface{kind: kindRaft, cluster: [16]byte{1}, group: 7}))
	f.Add(appendPreface(nil, preface{kind: kindRaft, cluster: [16]byte{1}, group: 7, name: "prod"}))
	f.Add([]byte("CNTD\x01\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePreface(b)
		if err != nil && !errors.Is(err, errBadPreface) {
			t.Errorf("error %v", err)
		}
		if err == nil && !bytes.Equal(appendPreface(nil, p), b) {
			t.Errorf("accepted %x", b)
		}
	})
}

func TestPrefaceWithNameComesBack(t *testing.T) {
	for _, name := range []string{"", "p", strings.Repeat("n", ClusterNameBytesMax)} {
		want := preface{kind: kindCall, cluster: [16]byte{1}, group: 7, to: 9, name: name}
		b := appendPreface([]byte("before"), want)[len("before"):]
		if got, err := parsePreface(b); err != nil || got != want {
			t.Errorf("%+v, %v came back of %+v", got, err, want)
		}
		for n := range len(b) {
			if _, err := parsePreface(b[:n]); !errors.Is(err, errBadPreface) {
				t.Errorf("of %d of %d bytes: error %v, want errBadPreface", n, len(b), err)
			}
		}
		for n := range len(b) {
			if _, err := parsePreface(changed(b, n)); !errors.Is(err, errBadPreface) {
				t.Errorf("byte %d of %d changed: error %v, want errBadPreface", n, len(b), err)
			}
		}
	}
}

// TestMuxRefusesOtherNames: two nodes connect to each other, and are refused unless their cluster
// names agree. One line of the log names both clusters.
func TestMuxRefusesOtherNames(t *testing.T) {
	x, y, none := [16]byte{1}, [16]byte{2}, [16]byte{}
	for name, tc := range map[string]struct {
		idA, idB     [16]byte
		nameA, nameB string
		taken        bool
	}{
		"one name":                {idA: x, idB: x, nameA: "red", nameB: "red", taken: true},
		"no name":                 {idA: x, idB: x, taken: true},
		"a name by restarts":      {idA: x, idB: x, nameA: "red", taken: true},
		"a copy of a cluster":     {idA: x, idB: x, nameA: "red", nameB: "blue"},
		"two clusters":            {idA: x, idB: y, nameA: "red", nameB: "blue"},
		"two clusters, one name":  {idA: x, idB: y, nameA: "red", nameB: "red"},
		"two clusters, no name":   {idA: x, idB: y},
		"new nodes, one name":     {idA: none, idB: none, nameA: "red", nameB: "red", taken: true},
		"new nodes":               {idA: none, idB: none, nameA: "red", nameB: "blue"},
		"new nodes, one has none": {idA: none, idB: none, nameA: "red"},
	} {
		t.Run(name, func(t *testing.T) {
			listen := func(id [16]byte, name string) (*Mux, *proctest.Buffer) {
				logged := &proctest.Buffer{}
				m, err := ListenMux(MuxConfig{Addr: "127.0.0.1:0", ClusterID: id, ClusterName: name, Logger: slog.New(slog.NewTextHandler(logged, nil))})
				mustDo(t, err)
				t.Cleanup(func() { _ = m.Close() })
				return m, logged
			}
			a, logA := listen(tc.idA, tc.nameA)
			b, logB := listen(tc.idB, tc.nameB)
			for _, way := range []struct {
				from, to *Mux
				log      *proctest.Buffer
			}{{a, b, logB}, {b, a, logA}} {
				for range 3 {
					conn, err := way.from.Dial(t.Context(), way.to.Addr().String(), "", kindCall, 0)
					mustDo(t, err)
					defer conn.Close()
					if !tc.taken {
						mustBeClosed(t, conn)
						continue
					}
					in, err := way.to.Calls().Accept()
					mustDo(t, err)
					defer in.Close()
				}
				if tc.taken {
					continue
				}
				eventually(t, "both clusters are logged", func() bool {
					text := way.log.String()
					return strings.Contains(text, DescribeCluster(clusterHex(tc.idA), tc.nameA)) && strings.Contains(text, DescribeCluster(clusterHex(tc.idB), tc.nameB))
				})
				if n := strings.Count(way.log.String(), "refused a connection from a node of another cluster"); n != 1 {
					t.Errorf("%d lines of three connections:\n%s", n, way.log.String())
				}
			}
		})
	}
}

// TestMuxNamesTLS: a node with TLS connects to one without it. The refusal names TLS.
func TestMuxNamesTLS(t *testing.T) {
	if _, err := prefaceLen(append([]byte{tlsHandshake, 3, 1, 2, 0}, make([]byte, prefaceBytes)...)); err == nil || !strings.Contains(err.Error(), "it speaks TLS") {
		t.Error(err)
	}
}
