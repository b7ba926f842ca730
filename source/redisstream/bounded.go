package redisstream

import (
	"context"
	"errors"
	"net"

	"github.com/countd/countd/source"
)

// answerBytesMax bounds one answer of Redis. Even the smallest answer about a stream may have five
// entries: the first, the last, two to compare and one to read.
const answerBytesMax = 6 * source.MessageBytesMax

var errAnswer = errors.New("an answer of Redis is too large")

// bounded returns a dialer whose connections fail if an answer exceeds bytesMax. Redis itself
// bounds only the number of entries in an answer.
func bounded(dial func(ctx context.Context, network, addr string) (net.Conn, error), bytesMax int) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &boundedConn{Conn: conn, bytesMax: bytesMax, left: bytesMax}, nil
	}
}

// boundedConn is a connection that bounds the bytes that are read after each write. The client must
// read the whole answer to a request before it writes the next one.
type boundedConn struct {
	net.Conn
	bytesMax, left int
}

func (c *boundedConn) Write(data []byte) (int, error) {
	c.left = c.bytesMax
	return c.Conn.Write(data)
}

func (c *boundedConn) Read(to []byte) (int, error) {
	if c.left <= 0 {
		return 0, errAnswer
	}
	n, err := c.Conn.Read(to)
	c.left -= n
	return n, err
}
