package api

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// AnyHost among Config.AllowedHosts allows every Host.
const AnyHost = "*"

// errHost refuses a request whose Host is not a name of this node. In DNS rebinding, a web page
// makes its own name resolve to this node's address, and the browser sends that name.
var errHost = &fault{
	status:  fasthttp.StatusForbidden,
	code:    codePermissionDenied,
	message: "Host: it is not an address or name of this node; --allowed-hosts allows others",
	field:   "Host",
}

// checkHost refuses a Host that is not an IP literal, localhost or allowed. A web page
// cannot make a browser send an IP literal of its choice; HTTP/1.0 may lack a Host.
func (s *Server) checkHost(ctx *fasthttp.RequestCtx) error {
	host := ctx.Request.Header.Host()
	if last := s.lastHost.Load(); s.anyHost || last != nil && *last == string(host) {
		return nil
	}
	text := string(host)
	name := hostName(text)
	if _, err := netip.ParseAddr(name); err != nil && name != "" && name != "localhost" && !slices.Contains(s.hosts, name) {
		return errHost
	}
	s.lastHost.Store(&text)
	return nil
}

// hostName returns the name or address in a Host or an address, without its port, in
// lower case.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
