package shard

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
)

// Lobby is the cluster port of a node that has no cluster yet: it answers the
// calls of others that have none, and calls nodes by their addresses.
type Lobby struct {
	name   string // of the cluster that the node may join or form, "" for none
	mux    *Mux
	calls  *calls
	logger *slog.Logger
}

// Handler answers one kind of call. The request is its own; what it returns is
// the caller's.
type Handler = func(ctx context.Context, request []byte) ([]byte, error)

// OpenLobby answers calls by name at the listener, which Close closes. It is to be
// closed before the node's own port is opened. Nodes that were told another clusterName
// are refused.
func OpenLobby(listener net.Listener, clusterName string, handlers map[string]Handler, logger *slog.Logger) (*Lobby, error) {
	mux, err := ListenMux(MuxConfig{Listener: listener, ClusterName: clusterName, Logger: logger})
	if err != nil {
		return nil, err
	}
	c, err := newCalls(callsConfig{Mux: mux, Lookup: byAddress, ByAddress: true, Logger: logger})
	if err != nil {
		_ = mux.Close()
		return nil, err
	}
	for name, handle := range handlers {
		c.handle(name, handle)
	}
	c.serve()
	return &Lobby{name: clusterName, mux: mux, calls: c, logger: logger}, nil
}

// byAddress is for calls to nodes of which only the address is known.
func byAddress(addr string) (string, bool) { return addr, true }

// Call has the node at addr answer a request. clusterID, 32 hex digits, is its
// cluster; "" for a node that has none.
func (l *Lobby) Call(ctx context.Context, clusterID, addr, name string, request []byte) ([]byte, error) {
	if clusterID == "" {
		return l.calls.call(ctx, addr, name, request)
	}
	id, err := hex.DecodeString(clusterID)
	if err != nil || len(id) != 16 {
		return nil, fmt.Errorf("cluster id %q is not 32 hex digits", clusterID)
	}
	// A Mux that only dials: it names the other cluster.
	c, err := newCalls(callsConfig{
		Mux: &Mux{cfg: MuxConfig{ClusterID: [16]byte(id), ClusterName: l.name, Logger: l.logger}}, Lookup: byAddress, ByAddress: true, Logger: l.logger,
	})
	if err != nil {
		return nil, err
	}
	defer c.close()
	return c.call(ctx, addr, name, request)
}

// Close stops listening and waits for calls under way.
func (l *Lobby) Close() error {
	l.calls.close()
	return l.mux.Close()
}
