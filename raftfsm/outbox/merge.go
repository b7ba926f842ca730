package outbox

import "slices"

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

// Newest collects the newest posts of many outboxes. Its work is bounded: of an outbox it
// reads the posts that are among the newest so far, and one more.
type Newest struct {
	limit int
	heap  []Post // at most limit; the last of a timeline first
}

// Reset begins with no posts. limit must be above 0.
func (n *Newest) Reset(limit int) { n.limit, n.heap = limit, n.heap[:0] }

// Add adds the posts of an author, up to the id last.
func (n *Newest) Add(author int, body []byte, last uint64) {
	var c Cursor
	for more := c.Seek(body, last); more; more = c.Next() {
		if p := (Post{c.ID, author}); len(n.heap) < n.limit {
			n.heap = append(n.heap, p)
			n.up(len(n.heap) - 1)
		} else if !p.before(n.heap[0]) {
			return
		} else {
			n.heap[0] = p
			n.down()
		}
	}
}

// Posts returns the newest posts in the order of a timeline. They are valid until the next
// Reset.
func (n *Newest) Posts() []Post {
	slices.SortFunc(n.heap, func(p, q Post) int {
		if p.before(q) {
			return -1
		}
		return 1
	})
	return n.heap
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
