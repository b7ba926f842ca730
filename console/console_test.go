package console

import (
	"bytes"
	"image/png"
	"net/http"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

func open(t *testing.T) *Console {
	t.Helper()
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a request to the console. It returns whether the console answered it, and the answer.
func ask(t *testing.T, method, uri string, headers ...string) (bool, *fasthttp.Response) {
	t.Helper()
	ctx := &fasthttp.RequestCtx{}
	ctx.Request.Header.SetMethod(method)
	ctx.Request.SetRequestURI(uri)
	for i := 0; i < len(headers); i += 2 {
		ctx.Request.Header.Set(headers[i], headers[i+1])
	}
	return open(t).Serve(ctx), &ctx.Response
}

func TestBrowsersAreRedirected(t *testing.T) {
	const browser = "text/html,application/xhtml+xml,*/*;q=0.8"
	for _, test := range []struct {
		method, uri, accept string
		redirected          bool
	}{
		{"GET", "/", browser, true},
		{"HEAD", "/", browser, true},
		{"GET", "/ui", "*/*", true},
		{"GET", "/", "*/*", false},
		{"GET", "/", "", false},
		{"GET", "/", "application/json", false},
		{"POST", "/", browser, false},
		{"GET", "/v1/keyspaces", browser, false},
	} {
		answered, r := ask(t, test.method, test.uri, "Accept", test.accept)
		location := string(r.Header.Peek("Location"))
		if answered != test.redirected || answered && (r.StatusCode() != http.StatusFound || location != "ui/") {
			t.Errorf("%s %s with Accept %q: answered %v with %d to %q", test.method, test.uri, test.accept, answered, r.StatusCode(), location)
		}
	}
}

func TestFilesAreServed(t *testing.T) {
	for name, f := range open(t).files {
		answered, r := ask(t, "GET", "/ui/"+name)
		if !answered || r.StatusCode() != http.StatusOK || string(r.Body()) != string(f.body) || len(f.body) == 0 {
			t.Errorf("%s: answered %v with %d and %d bytes", name, answered, r.StatusCode(), len(r.Body()))
		}
		for header, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache", "ETag": f.etag, "Content-Type": contentTypes[path.Ext(name)],
		} {
			if got := string(r.Header.Peek(header)); got != want || got == "" {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
		if _, r := ask(t, "GET", "/ui/"+name, "If-None-Match", "W/"+f.etag); r.StatusCode() != http.StatusNotModified || len(r.Body()) != 0 {
			t.Errorf("%s: a browser that has it is answered %d with %d bytes", name, r.StatusCode(), len(r.Body()))
		}
	}
	if _, r := ask(t, "GET", "/ui/"); !strings.Contains(string(r.Body()), "<title>countd</title>") {
		t.Errorf("/ui/ is %s", r.Body())
	}
}

func TestOtherPathsAreRefused(t *testing.T) {
	for _, test := range []struct {
		method, uri string
		status      int
	}{
		{"GET", "/ui/none.js", http.StatusNotFound},
		{"GET", "/ui/ui/index.html", http.StatusNotFound},
		{"GET", "/ui/../console.go", http.StatusNotFound},
		{"GET", "/ui/%2e%2e/console.go", http.StatusNotFound},
		{"POST", "/ui/index.html", http.StatusMethodNotAllowed},
	} {
		answered, r := ask(t, test.method, test.uri)
		if allow := string(r.Header.Peek("Allow")); !answered || r.StatusCode() != test.status || (allow == "GET, HEAD") != (test.status == http.StatusMethodNotAllowed) {
			t.Errorf("%s %s: answered %v with %d and Allow %q, want %d", test.method, test.uri, answered, r.StatusCode(), allow, test.status)
		}
	}
}

// The console must load over slow links. These constants bound the size of all its files, and the
// size of those that a browser loads before it shows anything.
const (
	bytesMax      = 200_000
	firstPaintMax = 100_000
)

func TestFilesAreSmall(t *testing.T) {
	c, sum := open(t), 0
	for _, f := range c.files {
		sum += len(f.body)
	}
	if sum > bytesMax {
		t.Errorf("the files have %d bytes together, more than %d", sum, bytesMax)
	}
	first := map[string]bool{}
	c.follow("index.html", first)
	paint := 0
	for name := range first {
		paint += len(c.files[name].body)
	}
	if paint > firstPaintMax || len(first) < 3 {
		t.Errorf("the first paint needs %d bytes of %d files, want at most %d bytes", paint, len(first), firstPaintMax)
	}
	t.Logf("%d bytes together, %d before the first paint", sum, paint)
}

// TestScreenshotIsSmall checks the picture in README.md. make console-test makes the picture.
func TestScreenshotIsSmall(t *testing.T) {
	picture, err := os.ReadFile("../docs/console.png")
	if err != nil {
		t.Fatal(err)
	}
	shape, err := png.DecodeConfig(bytes.NewReader(picture))
	if err != nil || shape.Width != 1200 || len(picture) > 150_000 {
		t.Errorf("docs/console.png has %d bytes and is %d px wide (%v), want at most 150,000 bytes and 1,200 px", len(picture), shape.Width, err)
	}
}

// loaded matches the files that a page or a module loads before it runs. It does not match import(…) or
// files that a script adds.
var loaded = regexp.MustCompile(`(?:src|href)="([^"#:]+)"|(?m)^(?:import|export)[^'"]*['"]\./([^'"]+)['"]`)

// follow adds a file to seen, and also the files that it loads, directly or indirectly.
func (c *Console) follow(name string, seen map[string]bool) {
	if seen[name] {
		return
	}
	seen[name] = true
	for _, m := range loaded.FindAllStringSubmatch(string(c.files[name].body), -1) {
		c.follow(m[1]+m[2], seen)
	}
}

// TestPagesKeepToTheirOrigin fails for content that a browser would refuse by the policy, and for absolute
// addresses.
func TestPagesKeepToTheirOrigin(t *testing.T) {
	for what, forbidden := range map[string]*regexp.Regexp{
		"an inline script":     regexp.MustCompile(`<script(?:>|[^>]*[^>/]>[^<])`),
		"an inline style":      regexp.MustCompile(`<style|\sstyle=|setAttribute\(['"]style`),
		"an inline handler":    regexp.MustCompile(`<[^>]*\son[a-z]+=`),
		"evaluated text":       regexp.MustCompile(`\beval\(|new Function\(|innerHTML|insertAdjacentHTML|document\.write`),
		"an absolute address":  regexp.MustCompile(`(?:src|href|fetch\(|from )\s*=?\s*['"` + "`" + `](?:/|[a-z]+:)`),
		"another origin":       regexp.MustCompile(`https?://(?:[a-vx-z]|w[^w])`),
		"storage or a cookie":  regexp.MustCompile(`localStorage|sessionStorage|indexedDB|document\.cookie`),
		"a number from an id":  regexp.MustCompile(`JSON\.parse\((?:await|text|body)|\.json\(\)`),
		"a language of before": regexp.MustCompile(`\bvar [a-z]`),
	} {
		for name, f := range open(t).files {
			if strings.HasPrefix(name, "uPlot") || name == runbook {
				continue
			}
			if found := forbidden.Find(f.body); found != nil {
				t.Errorf("%s has %s: %s", name, what, found)
			}
		}
	}
}

// TestFilesAreUsed checks that the index leads to every file, that each has a content type, and that the licence
// of uPlot is beside it.
func TestFilesAreUsed(t *testing.T) {
	c := open(t)
	for name := range c.files {
		used := name == "index.html"
		for other, f := range c.files {
			used = used || other != name && other != runbook && !strings.HasPrefix(other, "uPlot") && strings.Contains(string(f.body), name)
		}
		if !used {
			t.Errorf("no file names %s", name)
		}
		if contentTypes[path.Ext(name)] == "" {
			t.Errorf("%s has no content type", name)
		}
	}
	if licence := c.files["uPlot.LICENSE.txt"]; !strings.Contains(string(licence.body), "The MIT License (MIT)") {
		t.Errorf("the licence of uPlot is %q", licence.body)
	}
}
