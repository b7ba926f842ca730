package scarce

import (
	"fmt"
	"math"
	"net"
	"syscall"
)

// A process has a limit of file descriptors (RLIMIT_NOFILE; Go raises the soft limit to the hard
// limit). Linux gives a new file the lowest free number. The node closes a client connection whose
// number reaches a bound. So the numbers from this bound on stay free for the node, however many
// clients connect. Connections of peers have a higher bound.
const (
	// FilesMin is the lowest limit that a node starts with. Half of it is for the node itself: its
	// ports, a few peers, and the databases of rows and of members (TableFiles each). The log also
	// needs a file for each 16 MiB, and a snapshot that is being written or sent needs two.
	FilesMin = 512
	// FilesWanted is enough for 8,192 HTTP connections, 8,192 Redis connections and filesOwnMax
	// descriptors of the node.
	FilesWanted = 2*8192 + filesOwnMax

	// filesOwnMax bounds the descriptors that clients cannot use: 4,096 for the segments of 64 GiB
	// of log, and 4,096 others.
	filesOwnMax = 8192
	// tableFilesMax bounds how many files one Pebble database keeps open. Each open file takes a
	// few kilobytes of memory.
	tableFilesMax = 512
)

// Files is a limit of file descriptors.
type Files int

// FileLimit returns the limit of this process.
func FileLimit() (Files, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("cannot read the limit of open files: %w", err)
	}
	return Files(min(limit.Cur, 1<<30)), nil
}

// own returns how many descriptors are reserved for the node, so that clients cannot use them.
func (f Files) own() Files { return min(f/2, filesOwnMax) }

// Bounds returns ForClients and ForPeers for the current limit of this process, because prlimit may
// lower the limit while the process runs. If the limit is unknown, both are math.MaxInt.
func Bounds() (clients, peers int) {
	f, err := FileLimit()
	if err != nil {
		return math.MaxInt, math.MaxInt
	}
	return f.ForClients(), f.ForPeers()
}

// ForClients returns the bound for client connections: their descriptors must be below it.
func (f Files) ForClients() int { return int(f - f.own()) }

// ForPeers returns the bound for connections from peers: their descriptors must be below it.
func (f Files) ForPeers() int { return int(f - f.own()/2) }

// TableFiles returns MaxOpenFiles for one Pebble database of the node. If it is below 64, Pebble
// still keeps up to 64 files open.
func TableFiles() int {
	if f, err := FileLimit(); err == nil {
		return int(min(f/16, tableFilesMax))
	}
	return tableFilesMax
}

// Descriptor returns the file descriptor of a connection with or without TLS, or -1 if the
// connection has none.
func Descriptor(conn net.Conn) int {
	for {
		over, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = over.NetConn()
	}
	number := -1
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { number = int(fd) })
		}
	}
	return number
}
