package scarce

import (
	"crypto/tls"
	"net"
	"syscall"
	"testing"

	"github.com/countd/countd/internal/must"
)

// For each limit, some descriptors are left that the node can use, but neither clients nor peers.
func TestDescriptorsAreShared(t *testing.T) {
	for _, limit := range []Files{FilesMin, 1024, 4096, FilesWanted, 1 << 20} {
		clients, peers := limit.ForClients(), limit.ForPeers()
		if clients < 256 || peers <= clients || int(limit)-peers < 128 {
			t.Errorf("%d: clients below %d, peers below %d", limit, clients, peers)
		}
	}
	if n := Files(FilesWanted).ForClients(); n < 2*8192 {
		t.Errorf("clients have %d of %d", n, FilesWanted)
	}
	limit, err := FileLimit()
	must.Do(t, err)
	if limit < 64 || TableFiles() > tableFilesMax {
		t.Errorf("limit %d, %d files of tables", limit, TableFiles())
	}
}

// Bounds follows a limit that was lowered.
func TestLoweredLimit(t *testing.T) {
	var limit syscall.Rlimit
	must.Do(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	defer func() { must.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }()
	for _, lowered := range []uint64{600, 400} {
		must.Do(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: lowered, Max: limit.Max}))
		if clients, peers := Bounds(); clients != int(lowered/2) || peers != int(lowered*3/4) {
			t.Errorf("%d: clients below %d, peers below %d", lowered, clients, peers)
		}
	}
}

func TestDescriptor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	must.Do(t, err)
	defer conn.Close()
	number := Descriptor(conn)
	var stat syscall.Stat_t
	must.Do(t, syscall.Fstat(number, &stat))
	if stat.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		t.Errorf("%d is no socket: mode %o", number, stat.Mode)
	}
	if got := Descriptor(tls.Client(conn, &tls.Config{})); got != number {
		t.Errorf("under TLS %d, want %d", got, number)
	}
	if a, _ := net.Pipe(); Descriptor(a) != -1 {
		t.Error("a pipe in memory has a descriptor")
	}
}
