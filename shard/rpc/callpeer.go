package rpc

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/countd/countd/shard/errs"
)

// callPeer is another node as this one calls it. The gRPC connection is to the
// node and not to an address: each dial looks for the address of that moment.
type callPeer struct {
	calls    *Calls
	node     string
	conn     *grpc.ClientConn
	inFlight atomic.Int64
	line     atomic.Pointer[callLine] // the newest connection; nil before the first
	silent   atomic.Pointer[silence]  // while pings have no answer; nil otherwise
}

// silence is a connection, nil for none, from which nothing came any more after it
// was heard so often.
type silence struct {
	line  *callLine
	heard uint64
}

// doubtful tells whether nothing has come from the node since its pings began to
// be left without an answer.
func (p *callPeer) doubtful() bool {
	s := p.silent.Load()
	line := p.line.Load()
	return s != nil && s.line == line && s.heard == line.count()
}

func newCallPeer(c *Calls, node string) (*callPeer, error) {
	p := &callPeer{calls: c, node: node}
	var err error
	p.conn, err = grpc.NewClient("passthrough:///"+node,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // what is to be secret is the Mux's business
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0), // pings keep the connection
		grpc.WithInitialWindowSize(streamWindowBytes),
		grpc.WithInitialConnWindowSize(connWindowBytes),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: ConnectBackoffMin, Multiplier: 2, Jitter: 0.2, MaxDelay: ConnectBackoffMax},
			MinConnectTimeout: ConnectTimeout,
		}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(callCodec{}),
			grpc.MaxCallRecvMsgSize(answerBytesMax),
			grpc.MaxCallSendMsgSize(MessageBytesMax),
		),
	)
	return p, err
}

// dial connects to where the node is now.
func (p *callPeer) dial(ctx context.Context) (net.Conn, error) {
	addr, known := p.calls.cfg.Lookup(p.node)
	if !known {
		return nil, fmt.Errorf("node %s is not known", p.node)
	}
	meant := p.node
	if p.calls.cfg.ByAddress {
		meant = ""
	}
	conn, err := p.calls.cfg.Mux.Dial(ctx, addr, meant, kindCall, 0)
	if err != nil {
		return nil, err
	}
	line := &callLine{Conn: conn}
	p.line.Store(line)
	return line, nil
}

// call is calls.call to this node. gRPC says Unavailable of a node that was
// never reached as of one that was lost with the answer; whether it has asked
// for the request's bytes tells them apart.
func (p *callPeer) call(ctx context.Context, method string, request []byte) ([]byte, error) {
	defer p.inFlight.Add(-1)
	if p.inFlight.Add(1) > callsInFlightMax {
		return nil, fmt.Errorf("%w: %d calls to node %s have no answer", errs.ErrOverloaded, callsInFlightMax, p.node)
	}
	if p.doubtful() {
		return nil, fmt.Errorf("%w: node %s does not answer pings", ErrNotSent, p.node)
	}
	asked, answer := callRequest{body: request}, callAnswer{}
	err := p.conn.Invoke(ctx, method, &asked, &answer)
	fate := ErrCallLost
	switch {
	case answer.arrived: // even if the connection was lost right behind it
		return answer.body, answer.err
	case !asked.sent:
		fate = ErrNotSent
	}
	cause := ctx.Err()
	if cause == nil && status.Code(err) == codes.DeadlineExceeded {
		cause = context.DeadlineExceeded // the other node's timer went off first
	}
	if cause != nil {
		return nil, fmt.Errorf("%w: %s on node %s: %w: %w", fate, method, p.node, cause, err)
	}
	return nil, fmt.Errorf("%w: %s on node %s: %w", fate, method, p.node, err)
}

// watch looks at the connection each PingEvery: it pings one that is silent,
// which also connects again, and closes one that stays so. It ends with calls,
// or when the node is not known any more. calls waits for it.
func (p *callPeer) watch() {
	defer p.conn.Close()
	ticker := time.NewTicker(PingEvery)
	defer ticker.Stop()
	var line *callLine
	var heard uint64
	for missed := 0; ; {
		select {
		case <-ticker.C:
		case <-p.calls.ctx.Done():
			return
		}
		if _, known := p.calls.cfg.Lookup(p.node); !known {
			p.calls.forget(p)
			return
		}
		// One from which nothing has come shows only that something takes connections.
		if now := p.line.Load(); now.count() > 0 && (now != line || now.count() != heard) {
			line, heard, missed = now, now.heard.Load(), 0
			p.silent.Store(nil)
			continue
		}
		if missed++; missed == pingsDoubtful {
			p.silent.Store(&silence{line, heard})
		}
		if missed >= PingsMissedMax && line.cut() {
			p.calls.cfg.Logger.Warn("closed the connection to a node that sends nothing any more",
				"node", p.node, "for", PingEvery*PingsMissedMax)
		}
		if cut := p.calls.cfg.Cut; cut != nil && missed >= PingsMissedMax {
			cut(p.node)
		}
		p.ping()
	}
}

// ping makes the node answer, if it can. The answer counts as it is read from
// the connection; what the call returns tells nothing more.
func (p *callPeer) ping() {
	ctx, cancel := context.WithTimeout(p.calls.ctx, PingEvery)
	defer cancel()
	_ = p.conn.Invoke(ctx, pingMethod, &callRequest{}, &callAnswer{})
}

// callLine is a connection that counts what comes.
type callLine struct {
	net.Conn
	heard  atomic.Uint64 // reads that brought something
	closed atomic.Bool
}

func (l *callLine) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.heard.Add(1)
	}
	return n, err
}

// count returns how often the connection was heard, 0 for none.
func (l *callLine) count() uint64 {
	if l == nil {
		return 0
	}
	return l.heard.Load()
}

func (l *callLine) Close() error {
	l.closed.Store(true)
	return l.Conn.Close()
}

// cut closes the connection and returns whether it was open.
func (l *callLine) cut() bool {
	if l == nil || l.closed.Swap(true) {
		return false
	}
	l.Conn.Close()
	return true
}
