package scarce

import (
	"fmt"
	"math"
	"net"
	"syscall"
)

// A process has a limit of file descriptors (RLIMIT_NOFILE; Go raises the soft one to the hard
// one). Linux gives a new file the lowest number that is free. If no client connection keeps a
// number at or above a bound, these numbers stay free for the node, however many clients connect.
// Connections of peers have a higher bound.
const (
	// FilesMin is the lowest limit that a node starts with. Half of it is for the node itself: its
	// ports, a few peers, and the tables of rows and members on disk (TableFiles each). The log
	// takes a file for each 16 MiB, and a snapshot that is written or sent takes two.
	FilesMin = 512
	// FilesWanted is the limit that suffices for 8,192 HTTP connections, 8,192 Redis connections
	// and filesOwnMax descriptors of the node.
	FilesWanted = 2*8192 + filesOwnMax

	// filesOwnMax bounds the descriptors that are reserved from clients: 4,096 for the segments of
	// 64 GiB of log, and 4,096 others.
	filesOwnMax = 8192
	// tableFilesMax bounds the files of one Pebble that stay open. Each keeps some kilobytes of memory.
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

// own returns how many descriptors clients leave to the node.
func (f Files) own() Files { return min(f/2, filesOwnMax) }

// Bounds returns ForClients and ForPeers of this process's present limit, which may be lowered
// while the process runs (prlimit). If the limit is unknown, both are math.MaxInt.
func Bounds() (clients, peers int) {
	f, err := FileLimit()
	if err != nil {
		return math.MaxInt, math.MaxInt
	}
	return f.ForClients(), f.ForPeers()
}

// ForClients returns a bound: connections of clients keep only descriptors below it.
func (f Files) ForClients() int { return int(f - f.own()) }

// ForPeers returns a bound: connections from peers keep only descriptors below it.
func (f Files) ForPeers() int { return int(f - f.own()/2) }

// TableFiles returns how many files one Pebble of the node keeps open. Pebble needs about 60 at
// least.
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
