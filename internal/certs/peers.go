package certs

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/countd/countd/internal/program"
)

// After the TLS handshake, the dialling node sends its name, and the other node answers whether it
// accepts the name. In TLS 1.3 the handshake of the dialling node ends before the other node checks
// its certificate. Without the answer, the dialling node would see a refusal only after its first
// request, and could not distinguish it from a lost connection.
//
//	dials:   ┌───────────┬────────┬─────────┐   answers: ┌─────────────┬────────┬────────┐
//	         │ version 1 │ length │ node id │            │ 0 or refusal│ length │ reason │
//	         │  1 byte   │ 1 byte │         │            │   1 byte    │ 1 byte │        │
//	         └───────────┴────────┴─────────┘            └─────────────┴────────┴────────┘
const (
	greetingVersion = 1
	welcome         = 0
	refusal         = 1
)

// recordHandshake is the first byte of a TLS connection. A connection between nodes without TLS
// never begins with this byte.
const recordHandshake = 0x16

// ErrWrongName is returned for a certificate that does not carry the name of the expected node.
var ErrWrongName = errors.New("the certificate names another node")

// PeersConfig configures OpenPeers.
type PeersConfig struct {
	// Setting, CASetting, CertFile, KeyFile, CAFile and Logger have the meaning that they have in
	// Config. All files must be set.
	Setting, CASetting        string
	CertFile, KeyFile, CAFile string
	Logger                    *slog.Logger
	// NodeID is this node's name. Its own certificate must carry this name, unless Name is set.
	NodeID string
	// Name, if not "", is a common name that the certificates of all nodes must carry, instead of
	// each node's own name.
	Name string
	// Permissive is for a running cluster that turns TLS on. If set, Peers also accepts connections
	// without TLS, and dials a node without TLS if dialling with TLS fails.
	Permissive bool
}

// Peers is mutual TLS between nodes. Each side presents a certificate that one of the authorities
// signed, and that is valid for servers and for clients. The certificate must carry the name of its
// node.
type Peers struct {
	*Source
	cfg     PeersConfig
	limited *slog.Logger
	plain   atomic.Uint64 // number of connections without TLS, with Permissive
}

// OpenPeers reads the files, and follows their changes until Close.
func OpenPeers(cfg PeersConfig) (*Peers, error) {
	p := &Peers{cfg: cfg, limited: new(program.LogLimiter).Logger(cfg.Logger)}
	var err error
	p.Source, err = Open(Config{
		Setting: cfg.Setting, CASetting: cfg.CASetting, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, CAFile: cfg.CAFile, Logger: cfg.Logger,
		Check: p.checkOwn, CheckPeer: verify,
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// checkOwn returns why the other nodes would refuse this node's own certificate. It ignores whether
// the certificate is valid at the current time.
func (p *Peers) checkOwn(set *Set) error {
	var chain []*x509.Certificate
	for _, raw := range set.Certificate.Certificate {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			return err
		}
		chain = append(chain, c)
	}
	// Accept an expired certificate, because its file may be replaced while the process runs.
	if err := verify(set, chain); err != nil && set.outdated(time.Now()) == nil {
		return err
	}
	return p.checkName(chain[0], p.cfg.NodeID)
}

// verify returns an error unless an authority of the set signed the chain, and the certificate is
// valid for servers and for clients. A certificate that is valid only for clients does not identify
// a node.
func verify(set *Set, chain []*x509.Certificate) error {
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: set.CAs, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}})
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage {
			return fmt.Errorf("the certificate of a node must be good for servers and for clients: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkName returns an error unless a certificate carries the name in p.cfg.Name or, if that is "",
// the name in the argument node.
func (p *Peers) checkName(leaf *x509.Certificate, node string) error {
	want := node
	if p.cfg.Name != "" {
		want = p.cfg.Name
	}
	named := slices.ContainsFunc(Names(leaf), func(name string) bool { return strings.EqualFold(name, want) })
	if !named && (net.ParseIP(want) == nil || leaf.VerifyHostname(want) != nil) {
		return fmt.Errorf("%w: it is of %q, not of %q", ErrWrongName, Names(leaf), want)
	}
	return nil
}

// ListenPeers returns a listener for other nodes that runs TLS on the connections of plain. The new
// listener closes plain.
func (p *Peers) ListenPeers(plain net.Listener) *Listener {
	config := p.Server()
	return listen(plain, Protocol{Name: "cluster"}, p.cfg.Logger, func(raw net.Conn) (net.Conn, error) {
		begin := raw
		if p.cfg.Permissive {
			first := bufio.NewReaderSize(raw, 16)
			b, err := first.Peek(1)
			if err != nil {
				return nil, err
			}
			begin = &begunConn{raw, first}
			if b[0] != recordHandshake {
				p.countPlain("from", raw)
				return begin, nil
			}
		}
		conn := &peerConn{tls.Server(begin, config)}
		if err := conn.Handshake(); err != nil {
			return nil, err
		}
		return conn, p.welcome(conn)
	})
}

// welcome reads the name of the node that has connected. It accepts the node if that node's
// certificate carries this name. Otherwise it sends a refusal and returns an error.
func (p *Peers) welcome(conn *peerConn) error {
	var head [2]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return fmt.Errorf("the node did not name itself: %w", err)
	}
	node := make([]byte, head[1])
	if _, err := io.ReadFull(conn, node); err != nil {
		return fmt.Errorf("the node did not name itself: %w", err)
	}
	err := p.checkName(conn.ConnectionState().PeerCertificates[0], string(node))
	if head[0] != greetingVersion {
		err = fmt.Errorf("the node greets in version %d, not %d", head[0], greetingVersion)
	}
	if err == nil {
		_, err = conn.Write([]byte{welcome, 0})
		return err
	}
	reason := err.Error()
	reason = reason[:min(len(reason), math.MaxUint8)]
	_, _ = conn.Write(append([]byte{refusal, byte(len(reason))}, reason...)) // welcome returns err whether or not the answer arrives
	return err
}

// Dial connects to the address and returns once the node there has accepted this node's
// certificate. The certificate of that node must carry the name in the argument node or, if that is
// "", the host of the address.
func (p *Peers) Dial(ctx context.Context, addr, node string) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if node == "" {
		node, _, _ = net.SplitHostPort(addr)
	}
	conn, refused := p.greet(ctx, raw, node)
	if refused == nil {
		return conn, nil
	}
	_ = raw.Close()
	if !p.cfg.Permissive || ctx.Err() != nil {
		return nil, fmt.Errorf("cannot connect to node %q at %s over TLS: %w", node, addr, refused)
	}
	if raw, err = new(net.Dialer).DialContext(ctx, "tcp", addr); err != nil {
		return nil, err
	}
	p.countPlain("to", raw, "node", node, "reason", refused)
	return raw, nil
}

// greet runs the handshake, checks the name of the other node, and waits until that node has
// accepted this node.
func (p *Peers) greet(ctx context.Context, raw net.Conn, node string) (net.Conn, error) {
	set := p.Current()
	conn := &peerConn{tls.Client(raw, &tls.Config{
		Certificates: []tls.Certificate{set.Certificate},
		MinVersion:   tls.VersionTLS12,
		// Skip the verification of crypto/tls, because it ignores the common name. VerifyConnection
		// verifies the chain and the name instead.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if err := verify(set, state.PeerCertificates); err != nil {
				return err
			}
			return p.checkName(state.PeerCertificates[0], node)
		},
	})}
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	if _, err := conn.Write(append([]byte{greetingVersion, byte(len(p.cfg.NodeID))}, p.cfg.NodeID...)); err != nil {
		return nil, err
	}
	var head [2]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, fmt.Errorf("the node did not accept this one: %w", err)
	}
	reason := make([]byte, head[1])
	if _, err := io.ReadFull(conn, reason); err != nil {
		return nil, fmt.Errorf("the node did not accept this one: %w", err)
	}
	if head[0] != welcome {
		return nil, fmt.Errorf("the node refused this one: %q", reason)
	}
	if !stop() {
		return nil, ctx.Err()
	}
	return conn, nil
}

// countPlain counts and logs a connection without TLS.
func (p *Peers) countPlain(direction string, raw net.Conn, args ...any) {
	p.plain.Add(1)
	args = append(args, direction, raw.RemoteAddr().String())
	p.limited.Warn("a connection between nodes has no TLS: without --cluster-tls-permissive it would be refused", args...)
}

// peerConn is a connection to another node. Its Close closes at once, without the close-notify
// alert of TLS: crypto/tls would wait up to 5 s to send it to a frozen peer. The alert is not
// needed, because every message between nodes marks its own end.
type peerConn struct{ *tls.Conn }

func (c *peerConn) Close() error { return c.NetConn().Close() }

// begunConn is a connection whose first bytes are in a buffer.
type begunConn struct {
	net.Conn
	first *bufio.Reader
}

func (c *begunConn) Read(b []byte) (int, error) {
	if c.first != nil && c.first.Buffered() == 0 {
		c.first = nil
	}
	if c.first != nil {
		return c.first.Read(b)
	}
	return c.Conn.Read(b)
}
