package spill

import "github.com/countd/countd/engine/cold"

// View walks all bodies as they were at one moment, by the hashes of their keys. It also reads the
// bodies on disk.
type View struct {
	Keys uint64 // in total

	cfg   *Config
	pages []*page
	at, i int               // indexes of the page of the next body, and of the key in the page
	out   *cold.RecordsView // nil for none
	body  []byte            // reused for bodies read from disk
}

// Capture captures pages and their records at one moment. The caller must close the view.
func (b *Bodies) Capture() *View {
	b.pages.mu.Lock()
	defer b.pages.mu.Unlock()
	v := &View{Keys: uint64(b.pages.keys.Load()), cfg: &b.shard.cfg, pages: b.pages.pages()}
	if b.out != nil && b.out.keys.Load() > 0 {
		v.out = b.out.records.Capture()
	}
	return v
}

// More reports whether there is another body.
func (v *View) More() bool {
	for v.at < len(v.pages) && v.i == v.pages[v.at].keys() {
		v.at, v.i = v.at+1, 0
	}
	return v.at < len(v.pages)
}

// Next returns the next body, which is valid until the next call. Call it only if More returns
// true. cold.ErrDamaged means that the body cannot be read.
func (v *View) Next() (key uint64, body []byte, err error) {
	page, i := v.pages[v.at], v.i
	v.i++
	key, body = page.key(i), page.body(i)
	if !IsMark(body) {
		return key, body, nil
	}
	b, err := v.out.Get(v.body[:0], Hash(key), versionOf(body))
	if err != nil {
		return key, nil, v.cfg.lost("read", key, err)
	}
	v.body = padded(b)
	return key, v.body, nil
}

// Close releases the view. Next must not be called any more.
func (v *View) Close() {
	v.pages, v.at, v.i = nil, 0, 0
	if v.out != nil {
		_ = v.out.Close() // nobody needs the records any more
	}
}
