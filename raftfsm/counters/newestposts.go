package counters

import (
	"encoding/binary"
	"slices"
)

// foundPost is a post of one of the merged authors.
type foundPost struct {
	ID     uint64
	Author int // position among the authors of a merge
}

// before reports whether a post precedes another in a timeline. Newer posts precede older ones; of
// equal ids, the author with the lower position is first.
func (p foundPost) before(q foundPost) bool {
	return p.ID > q.ID || p.ID == q.ID && p.Author < q.Author
}

// newestPosts collects the newest posts of many outboxes. Add offers the newest post of each
// author. Posts then walks only the outboxes whose newest post is still among the newest of all.
// For an outbox on disk, the newest post is in memory, so few outboxes must be read from disk;
// Missing returns those.
type newestPosts struct {
	limit int
	heap  []foundPost   // at most limit posts; the root is last in the order of a timeline
	added []addedOutbox // the outboxes whose newest post was among the newest when it was added
	below []missingOutbox
}

// addedOutbox is an outbox whose newest post was added.
type addedOutbox struct {
	newest foundPost
	body   []byte // nil for an outbox on disk until Found
	mark   []byte // the mark of an outbox on disk
}

// missingOutbox is an outbox on disk that Posts needs.
type missingOutbox struct {
	Author int
	Mark   []byte
	Body   []byte // the body for the mark; the caller sets it

	added int    // position in added; -1 if no post of the outbox was added
	last  uint64 // if added is -1: the highest id of the outbox that Posts may return
}

// Reset removes all posts. limit must be above 0.
func (n *newestPosts) Reset(limit int) {
	clear(n.added) // do not keep pages alive
	clear(n.below)
	n.limit, n.heap, n.added, n.below = limit, n.heap[:0], n.added[:0], n.below[:0]
}

// Add adds an author's posts with ids up to the argument last. The body must not change before
// Posts is called.
func (n *newestPosts) Add(author int, body []byte, last uint64) {
	p, found := foundPost{Author: author}, false
	if p.ID, found = newestPost(body, last); found && n.AddPost(p) {
		n.added = append(n.added, addedOutbox{newest: p, body: body})
	}
}

// AddSummary is Add for an author whose outbox is on disk. mark is the mark of the outbox, and
// summary the result of appendOutboxSummary. Neither may change before Posts is called.
func (n *newestPosts) AddSummary(author int, mark, summary []byte, last uint64) {
	p := foundPost{ID: binary.LittleEndian.Uint64(summary), Author: author}
	if p.ID > last {
		n.below = append(n.below, missingOutbox{Author: author, Mark: mark, added: -1, last: last})
	} else if n.AddPost(p) {
		n.added = append(n.added, addedOutbox{newest: p, mark: mark})
	}
}

// Missing appends the outboxes on disk that Posts needs to dst. Call it when all authors are added.
// The caller then sets the body of each missing outbox, and calls Found for it.
func (n *newestPosts) Missing(dst []missingOutbox) []missingOutbox {
	dst = append(dst, n.below...)
	for i := range n.added {
		if a := &n.added[i]; a.body == nil && !n.heap[0].before(a.newest) {
			dst = append(dst, missingOutbox{Author: a.newest.Author, Mark: a.mark, added: i})
		}
	}
	return dst
}

// Found adds the body of a missing outbox.
func (n *newestPosts) Found(m *missingOutbox) {
	if m.added < 0 {
		n.Add(m.Author, m.Body, m.last)
		return
	}
	n.added[m.added].body = m.Body
}

// newestPost returns a body's newest id that is not above the argument highest, or false. If that
// is the body's first id, newestPost decodes nothing.
func newestPost(body []byte, highest uint64) (id uint64, found bool) {
	if _, _, blocks := outboxHead(body); len(blocks) > 0 {
		if id = binary.LittleEndian.Uint64(blocks); id <= highest {
			return id, true
		}
	}
	var c outboxCursor
	found = c.Seek(body, highest)
	return c.ID, found
}

// AddPost adds one post, and reports whether it is among the newest so far.
func (n *newestPosts) AddPost(p foundPost) bool {
	if len(n.heap) < n.limit {
		n.heap = append(n.heap, p)
		n.up(len(n.heap) - 1)
		return true
	}
	if !p.before(n.heap[0]) {
		return false
	}
	n.heap[0] = p
	n.down()
	return true
}

// Posts returns the newest posts in the order of a timeline. The returned posts are valid until the
// next Reset. Before that, the caller must not add anything.
func (n *newestPosts) Posts() []foundPost {
	for i := range n.added {
		n.walk(&n.added[i])
	}
	slices.SortFunc(n.heap, func(p, q foundPost) int {
		if p.before(q) {
			return -1
		}
		return 1
	})
	return n.heap
}

// walk adds the other posts of an author, until one is not among the newest.
func (n *newestPosts) walk(a *addedOutbox) {
	if n.heap[0].before(a.newest) { // newer posts of others have replaced it
		return
	}
	var c outboxCursor
	c.Seek(a.body, a.newest.ID)
	for c.Next() && n.AddPost(foundPost{c.ID, a.newest.Author}) {
	}
}

func (n *newestPosts) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !n.heap[parent].before(n.heap[i]) {
			return
		}
		n.heap[i], n.heap[parent] = n.heap[parent], n.heap[i]
		i = parent
	}
}

func (n *newestPosts) down() {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(n.heap) {
			return
		}
		if child+1 < len(n.heap) && n.heap[child].before(n.heap[child+1]) {
			child++
		}
		if !n.heap[i].before(n.heap[child]) {
			return
		}
		n.heap[i], n.heap[child] = n.heap[child], n.heap[i]
		i = child
	}
}
