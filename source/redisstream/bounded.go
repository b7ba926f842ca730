package redisstream

import (
	"context"
	"errors"
	"net"

	"github.com/countd/countd/source"
)

// answerBytesMax bounds one answer of Redis. The smallest answer about a stream has up
// to five entries: the first and the last, two that are compared, and one that is read.
const answerBytesMax = 6 * source.MessageBytesMax

// errAnswer is returned by a connection whose answer is over answerBytesMax.
var errAnswer = errors.New("an answer of Redis is too large")

// bounded returns a dialer whose connections fail if an answer exceeds answerBytesMax. Redis itself
// bounds only the number of entries in an answer.
func bounded(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &boundedConn{Conn: conn, left: answerBytesMax}, nil
	}
}

// boundedConn is a connection that the client uses for one request after another: it writes one, and then
// reads the whole answer.
type boundedConn struct {
	net.Conn
	left int
}

func (c *boundedConn) Write(data []byte) (int, error) {
	c.left = answerBytesMax
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
