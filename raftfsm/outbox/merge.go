package outbox

import (
	"encoding/binary"
	"slices"
)

// Post is a post of one of the merged authors.
type Post struct {
	ID     uint64
	Author int // position among the authors of a merge
}

// before reports whether a post precedes another in a timeline. Newer posts precede older ones; of
// equal ids, the author with the lower position is first.
func (p Post) before(q Post) bool {
	return p.ID > q.ID || p.ID == q.ID && p.Author < q.Author
}

// Newest collects the newest posts of many outboxes. Add offers the newest post of each author, and
// Posts walks only the outboxes whose newest post is still among the newest of all. The newest post of
// an outbox on disk is in memory, so few outboxes must be read from disk: Missing returns these.
type Newest struct {
	limit int
	heap  []Post  // at most limit posts; the last one of a timeline is first
	added []added // the outboxes whose newest post was among the newest when it was added
	below []Missing
}

// added is an outbox whose newest post was added.
type added struct {
	newest Post
	body   []byte // nil for an outbox on disk until Found
	mark   []byte // the mark of an outbox on disk
}

// Missing is an outbox on disk that Posts needs.
type Missing struct {
	Author int
	Mark   []byte
	Body   []byte // the body for the mark; the caller sets it

	added int    // position in added; -1 if no post of the outbox was added
	last  uint64 // the highest id that Posts may have of the outbox, if added is -1
}

// Reset removes all posts. limit must be above 0.
func (n *Newest) Reset(limit int) {
	clear(n.added) // do not keep pages alive
	clear(n.below)
	n.limit, n.heap, n.added, n.below = limit, n.heap[:0], n.added[:0], n.below[:0]
}

// Add adds the posts of an author, up to the id last. The body must not change until Posts
// was called.
func (n *Newest) Add(author int, body []byte, last uint64) {
	p, found := Post{Author: author}, false
	if p.ID, found = newest(body, last); found && n.AddPost(p) {
		n.added = append(n.added, added{newest: p, body: body})
	}
}

// AddSummary adds the posts, up to the id last, of an author whose outbox is on disk. mark is the mark
// of the outbox, and summary that of AppendSummary. Neither may change until Posts was called.
func (n *Newest) AddSummary(author int, mark, summary []byte, last uint64) {
	p := Post{ID: binary.LittleEndian.Uint64(summary), Author: author}
	if p.ID > last {
		n.below = append(n.below, Missing{Author: author, Mark: mark, added: -1, last: last})
	} else if n.AddPost(p) {
		n.added = append(n.added, added{newest: p, mark: mark})
	}
}

// Missing appends the outboxes on disk that Posts needs to dst. The caller has added all authors. It
// sets the body of each missing outbox, and calls Found with it.
func (n *Newest) Missing(dst []Missing) []Missing {
	dst = append(dst, n.below...)
	for i := range n.added {
		if a := &n.added[i]; a.body == nil && !n.heap[0].before(a.newest) {
			dst = append(dst, Missing{Author: a.newest.Author, Mark: a.mark, added: i})
		}
	}
	return dst
}

// Found adds the body of a missing outbox.
func (n *Newest) Found(m *Missing) {
	if m.added < 0 {
		n.Add(m.Author, m.Body, m.last)
		return
	}
	n.added[m.added].body = m.Body
}

// newest returns the newest id of a body that is not above highest, or false. If that is the newest
// id of all, it decodes nothing.
func newest(body []byte, highest uint64) (id uint64, found bool) {
	if _, _, blocks := head(body); len(blocks) > 0 {
		if id = binary.LittleEndian.Uint64(blocks); id <= highest {
			return id, true
		}
	}
	var c Cursor
	found = c.Seek(body, highest)
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

// Posts returns the newest posts in the order of a timeline. They are valid until the next Reset. The
// caller must not add anything before that.
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
	if n.heap[0].before(a.newest) { // newer posts of others have replaced it
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

// AppendRow appends posts as a row of numbers: how many posts, and then each post's id and author.
func AppendRow(row []int64, posts []Post) []int64 {
	row = append(row, int64(len(posts)))
	for _, p := range posts {
		row = append(row, int64(p.ID), int64(p.Author))
	}
	return row
}
