package rpc

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
)

// BootstrapServer is the cluster port of a node without a cluster. It answers the calls of other
// nodes without a cluster, and calls nodes by their addresses.
type BootstrapServer struct {
	name   string // name of the cluster that the node may join or form; "" for none
	dial   DialPeer
	mux    *Mux
	calls  *Calls
	logger *slog.Logger
}

// OpenBootstrapServer answers calls at the listener. Close closes the listener, and must be called
// before the node opens its cluster port. The server refuses nodes with another clusterName. For
// dial, see MuxConfig.
func OpenBootstrapServer(listener net.Listener, dial DialPeer, clusterName string, handlers map[string]Handler, logger *slog.Logger) (*BootstrapServer, error) {
	mux, err := ListenMux(MuxConfig{Listener: listener, Dial: dial, ClusterName: clusterName, Logger: logger})
	if err != nil {
		return nil, err
	}
	c, err := NewCalls(CallsConfig{Mux: mux, Lookup: byAddress, ByAddress: true, Logger: logger})
	if err != nil {
		_ = mux.Close()
		return nil, err
	}
	for name, handle := range handlers {
		c.Handle(name, handle)
	}
	c.Serve()
	return &BootstrapServer{name: clusterName, dial: dial, mux: mux, calls: c, logger: logger}, nil
}

// byAddress looks up a node that is named by its address.
func byAddress(addr string) (string, bool) { return addr, true }

// Call calls a method of the node at addr. clusterID is the id of that node's cluster, 32 hex
// digits; "" if the node has no cluster.
func (l *BootstrapServer) Call(ctx context.Context, clusterID, addr, name string, request []byte) ([]byte, error) {
	if clusterID == "" {
		return l.calls.Call(ctx, addr, name, request)
	}
	id, err := hex.DecodeString(clusterID)
	if err != nil || len(id) != 16 {
		return nil, fmt.Errorf("cluster id %q is not 32 hex digits", clusterID)
	}
	// This Mux only dials; its preface names the cluster of the called node.
	c, err := NewCalls(CallsConfig{
		Mux: &Mux{cfg: MuxConfig{ClusterID: [16]byte(id), ClusterName: l.name, Dial: l.dial, Logger: l.logger}}, Lookup: byAddress, ByAddress: true, Logger: l.logger,
	})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Call(ctx, addr, name, request)
}

// Close stops listening and waits for running calls.
func (l *BootstrapServer) Close() error {
	l.calls.Close()
	return l.mux.Close()
}
