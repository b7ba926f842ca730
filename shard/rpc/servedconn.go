package rpc

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// requestSilenceMax bounds how long a peer may pause within a request that it has
// begun to send. TCP sends what was lost three times again by then. A leader whose
// disk holds it up for longer in the middle of a snapshot sends that anew.
const requestSilenceMax = 2 * time.Second

// servedConn is a connection over which a peer asks: raft reads a request, writes
// its answer, and reads the next. It is closed when a request stops on its way.
//
// raft reads a snapshot in its main loop and sets no deadline. A leader that is
// frozen or cut off while it sends one closes no connection, and would keep that
// follower from voting for as long as it is gone.
//
// raft reads from one goroutine at a time, and writes once it has read.
type servedConn struct {
	*muxConn
	begun   bool // a request has begun that has no answer yet
	bounded bool // the connection has a deadline for reads
}

// Read waits for as long as it takes for a request, and no longer than
// requestSilenceMax for more of one.
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
		// raft reads on after an error, to take a snapshot off the connection whole.
		err = errors.Join(fmt.Errorf("nothing came of a request for %v: %w", requestSilenceMax, err), c.Close())
	}
	c.begun = c.begun || n > 0
	return n, err
}

// Write writes of the answer.
func (c *servedConn) Write(p []byte) (int, error) {
	c.begun = false
	return c.muxConn.Write(p)
}
