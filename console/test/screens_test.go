package console

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/countd/countd/internal/must"
)

// shoot writes four screenshots of the current page: light and dark, each 1200 px and 400 px wide.
func (b *browser) shoot(name string) {
	b.t.Helper()
	if *screens == "" {
		return
	}
	must.Do(b.t, os.MkdirAll(*screens, 0o755))
	for _, look := range []struct {
		scheme string
		width  int64
	}{{"light", 1200}, {"dark", 1200}, {"light", 400}, {"dark", 400}} {
		b.emulate(look.scheme, look.width)
		time.Sleep(2500 * time.Millisecond) // the graphs are drawn anew with the next poll
		capture := chromedp.FullScreenshot(100)
		if name == "runbook" { // long
			capture = chromedp.CaptureScreenshot()
		}
		png, err := chromedp.Run(b.ctx, capture)
		must.Do(b.t, err)
		must.Do(b.t, os.WriteFile(filepath.Join(*screens, fmt.Sprintf("%s-%s-%d.png", name, look.scheme, look.width)), png, 0o644))
	}
	b.emulate("light", 1200)
}

// emulate sets the color scheme that the reader's system prefers, and the width of the window.
func (b *browser) emulate(scheme string, width int64) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	must.Do(b.t, err)
	b.run(chromedp.EmulateViewport(width, 800))
}
