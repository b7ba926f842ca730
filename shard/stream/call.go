package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/rpc"
)

// streamRequestMax and streamAnswerMax bound a call that travels on a stream: larger ones
// would delay appends.
const (
	streamRequestMax = 64 << 10
	streamAnswerMax  = 256 << 10
)

// Call asks a node, which must answer with answerBytes at most. If the call is small and
// the node is connected, it travels on the stream, which costs a fraction of what a call
// of gRPC costs. Otherwise Config.Calls carries it.
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

// ask has a node answer a call on the stream. It returns ErrNoStream, and has sent
// nothing, if there is no stream now or it has no room. A connection that the node does not
// serve yet is none: the node may refuse it, or stand still.
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

// Cut closes the connection to a node that answers no pings: rpc.Calls closes its own.
func (s *Streams) Cut(node string) {
	p := s.peer(node)
	p.mu.Lock()
	c := p.mu.conn
	p.mu.Unlock()
	if c != nil {
		c.fail(errPingsMissed)
	}
}

// errPingsMissed is why a connection is closed to a node that answers no pings.
var errPingsMissed = errors.New("the node does not answer pings")

// now returns the connection to the node if there is one, and otherwise has it dialled
// unless that failed a moment ago.
func (p *peer) now() *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.conn == nil {
		_, _ = p.dialLocked("")
	}
	return p.mu.conn
}

// silenceMax is for how long calls on a connection may end at their deadlines while nothing
// at all is heard on it. A network that loses a connection silently tells no other way,
// unless appends travel on it; pings of rpc.Calls are about another connection.
const silenceMax = 3 * time.Second

// errSilent is why a connection is closed on which nothing is heard.
var errSilent = errors.New("the node answers nothing on the connection")

// noteSilence notes that a call ended at its deadline that began when heard answers had
// come. If nothing came since then, and for silenceMax, it ends the connection.
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

// ask has the node answer a call of a method.
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
