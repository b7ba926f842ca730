// Package console serves the pages of the console at /ui/: plain ES modules, a style sheet, uPlot as it was
// built, and the runbook. It owns these files and their headers. It never answers a call of the API: the pages
// make the same calls as any client, with the token that the person using them enters.
//
// Invariants:
//   - A page loads nothing from another origin, and has no inline script, no inline style and no absolute address.
//     So it works offline and below a prefix of a proxy. The Content-Security-Policy makes the browser enforce
//     that.
//   - A token is in the memory of the page only, never in an address, a cookie or the browser's storage. After a reload, the page asks the user for it again.
//
// If the page's own node does not answer, the page says so and navigates the browser to another
// node's console, as a link would. The page does not call other nodes itself: such calls would need
// CORS headers on the API and a wider policy here. Then a script injected into a page of one node
// could read and change every node with the user's token. With a navigation, the page passes no
// data to the other node, not even the token.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"path"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/docs"
)

//go:embed ui
var files embed.FS

// runbook is the name under which the pages get docs/OPERATING.md.
const runbook = "runbook.md"

// policy is the Content-Security-Policy of all pages.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// contentTypes has the content types of the files, by the end of their names.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".md":   "text/markdown; charset=utf-8",
	".txt":  "text/plain; charset=utf-8",
}

// file is one file of the console.
type file struct {
	body        []byte
	contentType string
	etag        string
}

// Console serves the files. It is immutable and safe for concurrent use.
type Console struct{ files map[string]file }

// New returns a console with all its files.
func New() (*Console, error) {
	c := &Console{map[string]file{}}
	entries, err := files.ReadDir("ui")
	if err != nil {
		return nil, fmt.Errorf("cannot list the console's files: %w", err)
	}
	for _, entry := range entries {
		body, err := files.ReadFile("ui/" + entry.Name())
		if err != nil {
			return nil, fmt.Errorf("cannot read a file of the console: %w", err)
		}
		c.add(entry.Name(), body)
	}
	c.add(runbook, docs.Operating)
	return c, nil
}

func (c *Console) add(name string, body []byte) {
	sum := sha256.Sum256(body)
	c.files[name] = file{body, contentTypes[path.Ext(name)], `"` + hex.EncodeToString(sum[:8]) + `"`}
}

// Serve answers a request for a file below /ui/, and redirects a browser from / and /ui to /ui/.
// For any other request it returns false and does nothing. The Location header is relative, because
// a proxy may have removed a prefix from the path.
func (c *Console) Serve(ctx *fasthttp.RequestCtx) bool {
	asked := ctx.URI().PathOriginal()
	name, below := bytes.CutPrefix(asked, []byte("/ui/"))
	switch {
	case string(asked) == "/ui", string(asked) == "/" && acceptsHTML(ctx):
		ctx.SetStatusCode(fasthttp.StatusFound)
		ctx.Response.Header.Set(fasthttp.HeaderLocation, "ui/")
		ctx.Response.Header.Set(fasthttp.HeaderVary, fasthttp.HeaderAccept)
		return true
	case !below:
		return false
	case !ctx.IsGet() && !ctx.IsHead():
		ctx.Error("the console's files take GET and HEAD only\n", fasthttp.StatusMethodNotAllowed)
		ctx.Response.Header.Set(fasthttp.HeaderAllow, "GET, HEAD")
		return true
	case len(name) == 0:
		name = []byte("index.html")
	}
	f, ok := c.files[string(name)]
	if !ok {
		ctx.Error("the console has no such file\n", fasthttp.StatusNotFound)
		return true
	}
	f.answer(ctx)
	return true
}

// acceptsHTML reports whether the request is from a browser. A browser's Accept header names
// text/html; other clients send */* or no such header.
func acceptsHTML(ctx *fasthttp.RequestCtx) bool {
	return (ctx.IsGet() || ctx.IsHead()) && bytes.Contains(ctx.Request.Header.Peek(fasthttp.HeaderAccept), []byte("text/html"))
}

// answer sends the file, or 304 if the browser has it. The headers make the browser check each file
// each time, so that it never mixes the files of two versions.
func (f *file) answer(ctx *fasthttp.RequestCtx) {
	h := &ctx.Response.Header
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
	h.Set(fasthttp.HeaderCacheControl, "no-cache")
	h.Set(fasthttp.HeaderETag, f.etag)
	if bytes.Contains(ctx.Request.Header.Peek(fasthttp.HeaderIfNoneMatch), []byte(f.etag)) {
		ctx.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	h.SetContentType(f.contentType)
	ctx.Response.SetBodyRaw(f.body)
}
