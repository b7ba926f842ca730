package shard

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

// callSmall is calls.call for a call whose answer is of answerBytes at most. If it is
// small and the node is connected, it travels on the stream of appends, which costs a
// fraction of what a call of gRPC costs.
func (n *Node) callSmall(ctx context.Context, node, method string, request []byte, answerBytes int) ([]byte, error) {
	if n.appends != nil && n.appends.cfg.Allowed() && len(request) <= streamRequestMax && answerBytes <= streamAnswerMax {
		if err := n.calls.Reachable(node); err != nil {
			return nil, err
		}
		answer, err := n.appends.ask(ctx, node, method, request)
		if !errors.Is(err, errNoStream) {
			return answer, err
		}
	}
	return n.calls.Call(ctx, node, method, request)
}

// cut closes the stream to a node that answers no pings: calls closes its own connection.
func (n *Node) cut(node string) { n.appends.cut(node) }

// ask is calls.call over the stream to a node. It returns errNoStream, and has sent
// nothing, if there is none now or it has no room. A connection that the node does not
// serve yet is none: the node may refuse it, or stand still.
func (a *appends) ask(ctx context.Context, node, method string, request []byte) ([]byte, error) {
	c := a.peer(node).now()
	if c == nil || !c.serve.Load() {
		return nil, errNoStream
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rpc.CallTimeoutMax)
		defer cancel()
	}
	return c.ask(ctx, method, request)
}

// cut closes the connection to a node from which nothing comes.
func (a *appends) cut(node string) {
	p := a.peer(node)
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
func (p *appendPeer) now() *appendConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.conn == nil {
		_, _ = p.dialLocked("")
	}
	return p.mu.conn
}

// ask has the node answer a call of a method.
func (c *appendConn) ask(ctx context.Context, method string, request []byte) ([]byte, error) {
	deadline, _ := ctx.Deadline()
	id, call, err := c.put(func(dst []byte, id uint64) []byte {
		return appendStreamCall(dst, id, method, min(time.Until(deadline), rpc.CallTimeoutMax), request)
	})
	if err != nil {
		return nil, errNoStream
	}
	select {
	case <-call.done:
	case <-ctx.Done():
		c.giveUp(id)
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
