package rpc

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A peer sends requests on a connection. The node:
//
//  1. waits without limit for the beginning of each request;
//  2. accepts a request that arrives slowly;
//  3. fails every read once a request has stopped before its end.
func TestRequestThatStopsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		layer := newMuxLayer(nil, 7, "n1.0")
		kept, err := layer.keep(here)
		mustDo(t, err)
		c := &servedConn{muxConn: kept}
		go func() {
			for range 2 {
				time.Sleep(time.Hour)
				for range 10 {
					_, _ = there.Write([]byte("part"))
					time.Sleep(requestSilenceMax - time.Millisecond)
				}
				_, _ = io.ReadFull(there, make([]byte, 2))
			}
			_, _ = there.Write([]byte("part"))
		}()
		part := make([]byte, 4)
		for range 2 {
			for range 10 {
				_, err := io.ReadFull(c, part)
				mustDo(t, err)
			}
			_, err := c.Write([]byte("ok"))
			mustDo(t, err)
		}
		_, err = io.ReadFull(c, part)
		mustDo(t, err)
		began := time.Now()
		if _, err := c.Read(part); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != requestSilenceMax {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := c.Read(part); err == nil || time.Since(began) != requestSilenceMax {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := there.Write(part); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("its peer writes on: %v", err)
		}
	})
}
