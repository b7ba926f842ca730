package gate

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
)

// AnyHost in a list of hosts allows every host.
const AnyHost = "*"

// Hosts are the values of the header Host that a server allows. A web page's host name may resolve
// to this node's address (DNS rebinding), so other hosts must be refused.
type Hosts struct {
	names []string
	any   bool
	// last is the most recently allowed host. Most requests have the same host as the previous
	// request, and the comparison with last allocates nothing.
	last atomic.Pointer[string]
}

// NewHosts allows names, with or without a port. A nil list allows every host.
func NewHosts(names []string) *Hosts {
	h := &Hosts{any: names == nil || slices.Contains(names, AnyHost)}
	for _, name := range names {
		h.names = append(h.names, hostName(name))
	}
	return h
}

// Allows reports whether a host is an IP literal, localhost or a name that is allowed. An IP literal
// is safe: a web page cannot make a browser send an arbitrary IP literal as the Host. A request of
// HTTP/1.0 may lack a Host.
func (h *Hosts) Allows(host []byte) bool {
	if last := h.last.Load(); h.any || last != nil && *last == string(host) {
		return true
	}
	text := string(host)
	name := hostName(text)
	if _, err := netip.ParseAddr(name); err != nil && name != "" && name != "localhost" && !slices.Contains(h.names, name) {
		return false
	}
	h.last.Store(&text)
	return true
}

// hostName returns a host's name or address in lower case, without port and brackets.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
