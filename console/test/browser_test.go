package console

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/countd/countd/internal/must"
)

// browser is a tab in a chromium of its own. It records the page's log messages of errors and its
// failed requests.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	origin   string   // origin of the page; the browser records requests to other origins
	problems []string // errors and requests that a page must not cause
}

// newBrowser starts a browser that trusts every certificate. The test fails at its end if problems
// are left that forgive did not remove.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("the browser is chromium (Debian: chromium; .ci/run installs it)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.IgnoreCertErrors)
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	b := &browser{t: t, ctx: ctx}
	must.Do(t, chromedp.Listen(ctx, b.hear))
	_, err := chromedp.Call(ctx, log.Enable, cdp.Empty{})
	must.Do(t, err)
	_, err = chromedp.Call(ctx, network.Enable, network.EnableParams{})
	must.Do(t, err)
	b.run(chromedp.EmulateViewport(1200, 800))
	t.Cleanup(func() {
		for _, problem := range b.forgive() {
			t.Error(problem)
		}
	})
	return b
}

func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, fmt.Sprintf("exception: %s %+v at %s:%d", e.ExceptionDetails.Text, e.ExceptionDetails.Exception, e.ExceptionDetails.URL, e.ExceptionDetails.LineNumber))
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			var parts []string
			for _, arg := range e.Args {
				parts = append(parts, string(arg.Value)+arg.Description)
			}
			b.problems = append(b.problems, "console: "+strings.Join(parts, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.problems = append(b.problems, fmt.Sprintf("log: %s %s", e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		if to, err := url.Parse(e.Request.URL); err == nil && to.Scheme != "data" && to.Scheme+"://"+to.Host != b.origin {
			b.problems = append(b.problems, "a request beyond its origin: "+e.Request.URL)
		}
		if strings.Contains(e.Request.URL, "ctd_") {
			b.problems = append(b.problems, "a token in an address: "+e.Request.URL)
		}
	}
}

// forgive returns the problems recorded so far and removes them.
func (b *browser) forgive() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.problems
	b.problems = nil
	return all
}

func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	must.Do(b.t, chromedp.Do(b.ctx, actions...))
}

// evaluate returns the value of a JavaScript expression. If the value is a promise, evaluate waits
// for its result.
func evaluate[T any](b *browser, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// open opens a console, whose address ends with /ui/, at a page.
func (b *browser) open(console, page string) {
	b.t.Helper()
	at, err := url.Parse(console)
	must.Do(b.t, err)
	b.mu.Lock()
	b.origin = at.Scheme + "://" + at.Host
	b.mu.Unlock()
	b.run(chromedp.Navigate(console + "#/" + page))
}

// goTo opens another page of the console, as a link does.
func (b *browser) goTo(page string) {
	b.t.Helper()
	evaluate[string](b, fmt.Sprintf("location.hash = '#/%s'", page))
}

// text returns the text of the first element that a selector finds, or "".
func (b *browser) text(selector string) string {
	b.t.Helper()
	return evaluate[string](b, fmt.Sprintf("document.querySelector(%q)?.textContent ?? ''", selector))
}

// await waits until an expression is true in the page.
func (b *browser) await(expression string) {
	b.t.Helper()
	for end := time.Now().Add(must.BecomeMax); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if holds, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression)); err == nil && holds {
			return
		}
	}
	b.t.Fatalf("never true: %s\nthe page is: %s", expression, b.text("body"))
}

// awaitText waits until an element has a text.
func (b *browser) awaitText(selector, want string) {
	b.t.Helper()
	b.await(fmt.Sprintf("(document.querySelector(%q)?.textContent ?? '').includes(%q)", selector, want))
}

// click presses the button or link with a name, once it is there.
func (b *browser) click(within, name string) {
	b.t.Helper()
	find := fmt.Sprintf("[...document.querySelectorAll(%q)].find(e => (e.getAttribute('aria-label') ?? e.textContent.trim()) === %q && !e.disabled)", within, name)
	b.await("!!" + find)
	if !strings.HasPrefix(within, "dialog") {
		b.await("!document.querySelector('dialog')") // an earlier dialog may still be closing
	}
	evaluate[bool](b, find+".click() ?? true")
}

// fill sets a field of the open dialog, or of the page.
func (b *browser) fill(name, value string) {
	b.t.Helper()
	selector := fmt.Sprintf("(document.querySelector('dialog') ?? document).querySelector('[name=%s]')", name)
	b.await("!!" + selector)
	evaluate[string](b, fmt.Sprintf("%s.value = %q", selector, value))
}
