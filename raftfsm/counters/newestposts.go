package counters

import (
	"encoding/binary"
	"slices"
)

// foundPost is a post of one of the merged authors.
type foundPost struct {
	ID     uint64
	Author int // index of the author in the merge
}

// before reports whether a post precedes another in a timeline. Newer posts precede older ones. Of
// two posts with equal ids, the one whose author has the lower index precedes the other.
func (p foundPost) before(q foundPost) bool {
	return p.ID > q.ID || p.ID == q.ID && p.Author < q.Author
}

// newestPosts merges the newest posts of many outboxes. The caller first calls Add for each author,
// which only adds the author's newest post. Posts then adds the other posts of those outboxes whose
// newest post is among the newest of all. For an outbox on disk, memory has its newest post. So
// only few outboxes must be read from disk, and Missing returns these.
type newestPosts struct {
	limit int
	heap  []foundPost   // the newest posts so far; the root is the last of them
	added []addedOutbox // outboxes whose newest post entered the heap
	below []missingOutbox
}

// addedOutbox is an outbox whose newest post entered the heap.
type addedOutbox struct {
	newest foundPost
	body   []byte // nil for an outbox on disk before Found
	mark   []byte // mark of an outbox on disk
}

// missingOutbox is an outbox on disk that Posts needs.
type missingOutbox struct {
	Author int
	Mark   []byte
	Body   []byte // set by the caller, which reads it with Mark

	added int    // index in added; -1 if no post was added
	last  uint64 // if added is -1, the argument last of AddSummary
}

// Reset removes all posts. limit must be above 0 if posts are added afterwards.
func (n *newestPosts) Reset(limit int) {
	clear(n.added) // let the garbage collector free the bodies
	clear(n.below)
	n.limit, n.heap, n.added, n.below = limit, n.heap[:0], n.added[:0], n.below[:0]
}

// Add adds an author's outbox to the merge. Posts with ids above last are left out. The body must
// not change until Posts returns.
func (n *newestPosts) Add(author int, body []byte, last uint64) {
	p, found := foundPost{Author: author}, false
	if p.ID, found = newestPost(body, last); found && n.AddPost(p) {
		n.added = append(n.added, addedOutbox{newest: p, body: body})
	}
}

// AddSummary is like Add, but for an outbox on disk. mark is the mark of the outbox, and summary
// the result of appendOutboxSummary. Neither may change until Posts returns. If the newest post of
// the outbox is above last, Missing returns the outbox.
func (n *newestPosts) AddSummary(author int, mark, summary []byte, last uint64) {
	p := foundPost{ID: binary.LittleEndian.Uint64(summary), Author: author}
	if p.ID > last {
		n.below = append(n.below, missingOutbox{Author: author, Mark: mark, added: -1, last: last})
	} else if n.AddPost(p) {
		n.added = append(n.added, addedOutbox{newest: p, mark: mark})
	}
}

// Missing appends to dst the outboxes on disk that Posts needs. It must be called after all authors
// were added. For each of the outboxes, the caller then sets Body and calls Found.
func (n *newestPosts) Missing(dst []missingOutbox) []missingOutbox {
	dst = append(dst, n.below...)
	for i := range n.added {
		if a := &n.added[i]; a.body == nil && !n.heap[0].before(a.newest) {
			dst = append(dst, missingOutbox{Author: a.newest.Author, Mark: a.mark, added: i})
		}
	}
	return dst
}

// Found adds the body of an outbox that Missing returned.
func (n *newestPosts) Found(m *missingOutbox) {
	if m.added < 0 {
		n.Add(m.Author, m.Body, m.last)
		return
	}
	n.added[m.added].body = m.Body
}

// newestPost returns a body's newest id that is not above highest. It returns false if there is
// none. It decodes no block if the body's first id is the result.
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

// AddPost adds one post if it is among the newest so far, and reports whether it is.
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

// Posts returns the newest posts in the order of a timeline. The result is valid until the next
// Reset. The caller must not add anything before that.
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

// walk adds the other posts of an outbox, newest first, until one is not among the newest.
func (n *newestPosts) walk(a *addedOutbox) {
	if n.heap[0].before(a.newest) { // a.newest is not in the heap any more
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
