package rpc

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// requestSilenceMax bounds a peer's pause within a request. It leaves TCP time for three
// retransmissions. If a leader's disk delays a snapshot longer, the leader sends that snapshot
// again.
const requestSilenceMax = 2 * time.Second

// servedConn is a connection on which a peer sends requests: raft reads a request, writes its
// answer, and reads the next. servedConn closes the connection if the peer stops in the middle of a
// request.
//
// raft reads a snapshot in its main loop, without a deadline. A leader that is frozen or cut off
// while it sends a snapshot closes no connection. Without this bound, that leader would keep the
// follower from voting until the leader returns.
//
// servedConn needs no lock: raft reads from one goroutine at a time, and writes only after it has
// read.
type servedConn struct {
	*muxConn
	begun   bool // a byte of a request has arrived, and the request is not answered yet
	bounded bool // the connection has a read deadline
}

// Read waits without a bound for a new request. Within a request, it waits at most
// requestSilenceMax for more bytes.
func (c *servedConn) Read(p []byte) (int, error) {
	if c.begun || c.bounded {
		var end time.Time
		if c.begun {
			end = time.Now().Add(requestSilenceMax)
		}
		if err := c.SetReadDeadline(end); err != nil {
			return 0, err
		}
		c.bounded = c.begun
	}
	n, err := c.muxConn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// Close the connection, because raft continues to read after an error, to drain a
		// snapshot.
		err = errors.Join(fmt.Errorf("nothing came of a request for %v: %w", requestSilenceMax, err), c.Close())
	}
	c.begun = c.begun || n > 0
	return n, err
}

// Write writes a part of the answer.
func (c *servedConn) Write(p []byte) (int, error) {
	c.begun = false
	return c.muxConn.Write(p)
}
