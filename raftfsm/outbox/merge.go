package outbox

import (
	"encoding/binary"
	"slices"
)

// Post is a post and which of the merged authors published it.
type Post struct {
	ID     uint64
	Author int // position among the authors of a merge
}

// before reports whether a post comes before another in a timeline: the newer first, and of
// equal ids that of the author with the lower position.
func (p Post) before(q Post) bool {
	return p.ID > q.ID || p.ID == q.ID && p.Author < q.Author
}

// Newest collects the newest posts of many outboxes. It reads more than the newest post of an
// outbox only if that one is among the newest of all: Add offers the newest of each author,
// and Posts walks the outboxes of those that are left.
type Newest struct {
	limit int
	heap  []Post  // at most limit; the last of a timeline first
	added []added // the outboxes whose newest post was among the newest at the time
}

// added is an outbox of which the newest post was added.
type added struct {
	newest Post
	body   []byte
}

// Reset begins with no posts. limit must be above 0.
func (n *Newest) Reset(limit int) {
	clear(n.added) // do not keep pages alive
	n.limit, n.heap, n.added = limit, n.heap[:0], n.added[:0]
}

// Add adds the posts of an author, up to the id last. The body must not change until Posts
// was called.
func (n *Newest) Add(author int, body []byte, last uint64) {
	p, found := Post{Author: author}, false
	if p.ID, found = newest(body, last); found && n.AddPost(p) {
		n.added = append(n.added, added{p, body})
	}
}

// newest returns the newest id of a body that is at most last, or false. It decodes nothing
// if that is the newest of all.
func newest(body []byte, last uint64) (id uint64, found bool) {
	if _, _, blocks := head(body); len(blocks) > 0 {
		if id = binary.LittleEndian.Uint64(blocks); id <= last {
			return id, true
		}
	}
	var c Cursor
	found = c.Seek(body, last)
	return c.ID, found
}

// AddPost adds one post, and reports whether it is among the newest so far.
func (n *Newest) AddPost(p Post) bool {
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

// Posts returns the newest posts in the order of a timeline. They are valid until the next
// Reset, and nothing may be added behind it.
func (n *Newest) Posts() []Post {
	for i := range n.added {
		n.walk(&n.added[i])
	}
	slices.SortFunc(n.heap, func(p, q Post) int {
		if p.before(q) {
			return -1
		}
		return 1
	})
	return n.heap
}

// walk adds the other posts of an author, until one is not among the newest.
func (n *Newest) walk(a *added) {
	if n.heap[0].before(a.newest) { // newer ones of others replaced it
		return
	}
	var c Cursor
	c.Seek(a.body, a.newest.ID)
	for c.Next() && n.AddPost(Post{c.ID, a.newest.Author}) {
	}
}

func (n *Newest) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !n.heap[parent].before(n.heap[i]) {
			return
		}
		n.heap[i], n.heap[parent] = n.heap[parent], n.heap[i]
		i = parent
	}
}

func (n *Newest) down() {
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
