package rpc

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// requestSilenceMax bounds a peer's pause within a request. TCP has retransmitted lost data three
// times by then. If a leader's disk delays a snapshot longer, the leader sends it again.
const requestSilenceMax = 2 * time.Second

// servedConn is a connection on which a peer sends requests: raft reads one, writes its answer,
// and reads the next. It closes the connection if a request stops half way.
//
// raft reads a snapshot in its main loop, without a deadline. A leader that is frozen or cut off
// while it sends one closes no connection. Without this bound, such a leader would keep the
// follower from voting until the leader returns.
//
// raft reads from one goroutine at a time, and writes after it has read.
type servedConn struct {
	*muxConn
	begun   bool // a request has begun and is not answered
	bounded bool // the connection has a read deadline
}

// Read waits for a new request without a bound, and for the rest of a request at most
// requestSilenceMax.
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
		// Close, because raft reads on after an error, to drain a snapshot.
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
