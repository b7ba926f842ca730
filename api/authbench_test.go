//go:build !race

// As alloc_test.go.

package api

import (
	"testing"

	"github.com/countd/countd/auth"
)

// BenchmarkServeWithToken compares the time of a call without --auth and with it.
func BenchmarkServeWithToken(b *testing.B) {
	quiet := func(c *Config) { c.Backend = quietNode{newFakeNode(), postsKeyspace()} }
	for _, one := range []struct {
		name  string
		start func() (*fakeServer, string)
	}{
		{"off", func() (*fakeServer, string) { return startFakeServer(b, quiet), "" }},
		{"enforce", func() (*fakeServer, string) {
			e := startAuth(b, auth.Enforce, quiet)
			return e.fakeServer, e.token(b, "web", `{"role":"writer","keyspaces":["posts"]}`)
		}},
	} {
		b.Run(one.name, func(b *testing.B) {
			l, token := one.start()
			ctx := newCall("GET", "/v1/counters/posts/4467107636950632", "")
			if token != "" {
				ctx.Request.Header.Set("Authorization", "Bearer "+token)
			}
			b.ReportAllocs()
			for b.Loop() {
				l.server.serve(ctx)
			}
			if ctx.Response.StatusCode() != 200 {
				b.Fatal(string(ctx.Response.Body()))
			}
		})
	}
}

// TestAuthAllocatesNothing checks that a token adds no allocation to a call.
func TestAuthAllocatesNothing(t *testing.T) {
	e := startAuth(t, auth.Enforce, func(c *Config) { c.Backend = quietNode{newFakeNode(), postsKeyspace()} })
	ctx := newCall("GET", "/v1/counters/posts/4467107636950632", "")
	ctx.Request.Header.Set("Authorization", "Bearer "+e.token(t, "web", `{"role":"writer","keyspaces":["posts"]}`))
	if n := testing.AllocsPerRun(100, func() { e.server.serve(ctx) }); n > 1 || ctx.Response.StatusCode() != 200 {
		t.Errorf("%v allocations, want at most 1; answered %d %s", n, ctx.Response.StatusCode(), ctx.Response.Body())
	}
}
