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

// callPeer is another node that this node calls. Each dial of its gRPC connection looks up the
// node's current address.
type callPeer struct {
	calls    *Calls
	node     string
	conn     *grpc.ClientConn
	inFlight atomic.Int64
	line     atomic.Pointer[callLine] // the newest connection; nil before the first
	silent   atomic.Pointer[silence]  // set while pings are unanswered
}

// silence records a silent connection and its read count when watch noticed the silence. line is
// nil if there was no connection.
type silence struct {
	line  *callLine
	heard uint64
}

// doubtful reports whether pings are unanswered, and no byte has arrived since watch noticed the
// silence.
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
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the Mux encrypts
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0), // the connection is never idle, because of the pings
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

// dial connects to the node's current address.
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

// call sends a call to the peer. gRPC returns Unavailable for a node that was never reached, and
// also for a node that was lost before its answer. callRequest.sent distinguishes these cases.
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
	case answer.arrived: // the answer counts even if the connection was lost right after it
		return answer.body, answer.err
	case !asked.sent:
		fate = ErrNotSent
	}
	cause := ctx.Err()
	if cause == nil && status.Code(err) == codes.DeadlineExceeded {
		cause = context.DeadlineExceeded // the other node's timer for the same deadline expired first
	}
	if cause != nil {
		return nil, fmt.Errorf("%w: %s on node %s: %w: %w", fate, method, p.node, cause, err)
	}
	return nil, fmt.Errorf("%w: %s on node %s: %w", fate, method, p.node, err)
}

// watch checks the connection every PingEvery. It pings a silent connection, which also reconnects
// a lost one, and closes a connection that stays silent. watch ends when Calls closes, or when
// Lookup no longer knows the node. Calls.Close waits for it.
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
		// A connection that has never delivered a byte does not prove that the node runs.
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

// ping makes a living node send bytes. It ignores the result of the call, because watch only counts
// bytes.
func (p *callPeer) ping() {
	ctx, cancel := context.WithTimeout(p.calls.ctx, PingEvery)
	defer cancel()
	_ = p.conn.Invoke(ctx, pingMethod, &callRequest{}, &callAnswer{})
}

// callLine counts the reads of a connection.
type callLine struct {
	net.Conn
	heard  atomic.Uint64 // reads that returned bytes
	closed atomic.Bool
}

func (l *callLine) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.heard.Add(1)
	}
	return n, err
}

// count returns the number of reads that returned bytes; 0 for a nil line.
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

// cut closes the connection and reports whether it was open.
func (l *callLine) cut() bool {
	if l == nil || l.closed.Swap(true) {
		return false
	}
	l.Conn.Close()
	return true
}
