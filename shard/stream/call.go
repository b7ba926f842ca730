package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/rpc"
)

// streamRequestMax and streamAnswerMax bound the request and the answer of a call on a stream.
// Larger calls would delay appends.
const (
	streamRequestMax = 64 << 10
	streamAnswerMax  = 256 << 10
)

// Call calls a method of a node. The answer must have at most answerBytes bytes. A small call to a
// connected node travels on the stream, at a fraction of the cost of a gRPC call. Other calls go
// through Config.Calls.
func (s *Streams) Call(ctx context.Context, node, method string, request []byte, answerBytes int) ([]byte, error) {
	if len(request) <= streamRequestMax && answerBytes <= streamAnswerMax {
		if err := s.cfg.Calls.Reachable(node); err != nil {
			return nil, err
		}
		answer, err := s.ask(ctx, node, method, request)
		if !errors.Is(err, ErrNoStream) {
			return answer, err
		}
	}
	return s.cfg.Calls.Call(ctx, node, method, request)
}

// ask sends a call on the stream. If there is no stream, or the stream has no space, ask sends
// nothing and returns ErrNoStream. The same holds before the node has sent its serve message,
// because the node may refuse the connection or hang.
func (s *Streams) ask(ctx context.Context, node, method string, request []byte) ([]byte, error) {
	c := s.peer(node).now()
	if c == nil || !c.serve.Load() {
		return nil, ErrNoStream
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rpc.CallTimeoutMax)
		defer cancel()
	}
	return c.ask(ctx, method, request)
}

// Cut closes the stream's connection to a node that does not answer pings. rpc.Calls closes the
// connection of its gRPC calls.
func (s *Streams) Cut(node string) {
	p := s.peer(node)
	p.mu.Lock()
	c := p.mu.conn
	p.mu.Unlock()
	if c != nil {
		c.fail(errPingsMissed)
	}
}

var errPingsMissed = errors.New("the node does not answer pings")

// now returns the connection to the node, or nil. If there is no connection, now starts a dial,
// unless the last dial failed a moment ago.
func (p *peer) now() *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.conn == nil {
		_, _ = p.dialLocked("")
	}
	return p.mu.conn
}

// silenceMax is how long calls may time out on a connection without any answer, before the
// connection is closed. If a connection carries only calls, nothing else shows that the network
// dropped the connection: the pings of rpc.Calls use another one.
const silenceMax = 3 * time.Second

var errSilent = errors.New("the node answers nothing on the connection")

// noteSilence records that a call timed out. The argument heard is the number of answers that had
// arrived when the call began. If no answer has arrived since then, and calls have timed out for
// silenceMax, noteSilence ends the connection.
func (c *Conn) noteSilence(heard int64, began time.Time) {
	c.mu.Lock()
	if c.heard.Load() != heard {
		c.mu.Unlock()
		return
	}
	if c.mu.silentSince.IsZero() || c.mu.silentHeard != heard {
		c.mu.silentSince, c.mu.silentHeard = began, heard
	}
	silent := time.Since(c.mu.silentSince)
	c.mu.Unlock()
	if silent >= silenceMax {
		c.fail(errSilent)
	}
}

func (c *Conn) ask(ctx context.Context, method string, request []byte) ([]byte, error) {
	heard, began := c.heard.Load(), time.Now()
	deadline, _ := ctx.Deadline()
	id, call, err := c.put(func(dst []byte, id uint64) []byte {
		return appendStreamCall(dst, id, method, min(time.Until(deadline), rpc.CallTimeoutMax), request)
	})
	if err != nil {
		return nil, ErrNoStream
	}
	select {
	case <-call.done:
	case <-ctx.Done():
		c.giveUp(id)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.noteSilence(heard, began)
		}
		return nil, fmt.Errorf("%w: %s on node %s: %w", rpc.ErrCallLost, method, c.peer.node, ctx.Err())
	}
	switch {
	case call.unsent:
		return nil, fmt.Errorf("%w: %w", rpc.ErrNotSent, call.err)
	case call.err != nil:
		return nil, fmt.Errorf("%w: %s: %w", rpc.ErrCallLost, method, call.err)
	}
	answer, told, err := rpc.ParseAnswer(call.answer.body)
	if err != nil {
		return nil, fmt.Errorf("%w: %s on node %s: %w", rpc.ErrCallLost, method, c.peer.node, err)
	}
	return answer, told
}
