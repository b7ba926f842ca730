package scarce

import (
	"fmt"
	"math"
	"net"
	"syscall"
)

// A process has a limit of file descriptors (RLIMIT_NOFILE; Go raises the soft one to the hard
// one). Linux gives a new file the lowest number that is free. So if no connection of a client
// keeps a number from a bound on, all numbers from there on are for the node itself, however many
// clients connect. The same with a higher bound for peers.
const (
	// FilesMin is the least limit that a node starts with: half of it holds its ports, a segment
	// of the log for each 16 MiB, two files for each snapshot that is written or sent, the tables
	// of rows and members on disk (TableFiles each), and connections to a few peers.
	FilesMin = 512
	// FilesWanted is a limit that leaves HTTP and Redis clients the 8,192 connections each that
	// they may have, and the node filesOwnMax.
	FilesWanted = 2*8192 + filesOwnMax

	// filesOwnMax bounds what clients leave free: segments for 64 GiB of log and as many others.
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

// own is how many descriptors clients leave to the node.
func (f Files) own() Files { return min(f/2, filesOwnMax) }

// Bounds returns ForClients and ForPeers of this process's limit as it is now: it may be lowered
// while the process runs (prlimit). If it is unknown, they bound nothing.
func Bounds() (clients, peers int) {
	f, err := FileLimit()
	if err != nil {
		return math.MaxInt, math.MaxInt
	}
	return f.ForClients(), f.ForPeers()
}

// ForClients is the number from which on no descriptor is a client's.
func (f Files) ForClients() int { return int(f - f.own()) }

// ForPeers is the number from which on no descriptor is that of a connection from a peer.
func (f Files) ForPeers() int { return int(f - f.own()/2) }

// TableFiles is how many files one Pebble of the node keeps open. Pebble takes some 60 at least.
func TableFiles() int {
	if f, err := FileLimit(); err == nil {
		return int(min(f/16, tableFilesMax))
	}
	return tableFilesMax
}

// Descriptor returns the file descriptor of a connection, also of one under TLS, or -1 if it has
// none.
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
