package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/auth"
)

// TestConsoleNeedsNoToken checks that the server serves the console's files without a token, and
// counts them as a separate endpoint. All other calls need a token. The server refuses a request
// whose Host is not a name of the node, even for the console.
func TestConsoleNeedsNoToken(t *testing.T) {
	e := startAuth(t, auth.Enforce, func(c *Config) {
		c.AllowedHosts = []string{"counts.example.com"}
		c.Console = func(ctx *fasthttp.RequestCtx) bool {
			ctx.SetBodyString("a page")
			return string(ctx.Path()) == "/ui/"
		}
	})
	for _, test := range []struct {
		path, host string
		status     int
	}{
		{"/ui/", "counts.example.com", http.StatusOK},
		{"/ui/", "elsewhere.example.com", http.StatusForbidden},
		{"/", "counts.example.com", http.StatusUnauthorized},
		{"/v1/cluster", "counts.example.com", http.StatusUnauthorized},
	} {
		ctx := newCall("GET", test.path, "")
		ctx.Request.Header.SetHost(test.host)
		e.server.serve(ctx)
		if status := ctx.Response.StatusCode(); status != test.status || (string(ctx.Response.Body()) == "a page") != (status == http.StatusOK) {
			t.Errorf("%s of %s: %d %s", test.path, test.host, status, ctx.Response.Body())
		}
	}
	if metrics := e.as(rootToken, "GET", "/metrics", ""); !strings.Contains(metrics.body, `countd_http_request_duration_seconds_count{code="2xx",endpoint="console"} 1`) {
		t.Error("the page is not counted")
	}
}
