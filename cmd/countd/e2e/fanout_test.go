package e2e

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

const (
	followSet    = "../../../../shared/data/follow_edges.csv.gz" // beside the repository; may be missing
	followShort  = "tw_hershey"                                  // name of the only graph that is used unless whole is set
	graphIDsStep = 1_000_000                                     // distance between the ids of two graphs
)

// edge is a follower and the followed author, who is a user too.
type edge struct{ user, author uint64 }

// followGraph returns the edges of three separate graphs of followers on Twitter. Unless whole is
// set, it returns only those of followShort. If the file followSet is missing, it returns made-up
// edges instead.
func followGraph(t *testing.T, whole bool) []edge {
	t.Helper()
	records, there := recordsOf(t, followSet)
	if !there {
		records = madeUpEdges()
	}
	base := map[string]uint64{}
	var edges []edge
	for _, r := range records {
		if !whole && r[0] != followShort {
			continue
		}
		if _, known := base[r[0]]; !known {
			base[r[0]] = uint64(len(base)) * graphIDsStep
		}
		edges = append(edges, edge{base[r[0]] + number(t, r[1]), base[r[0]] + number(t, r[2])})
	}
	return edges
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n >= graphIDsStep {
		t.Fatalf("an id of a graph: %q, %v", text, err)
	}
	return n
}

// madeUpEdges returns records of graph, src and dst, in which a few users are followed by
// many.
func madeUpEdges() (records [][]string) {
	r := rand.New(rand.NewPCG(7, 5))
	authors := rand.NewZipf(r, 1.2, 20, 9_000)
	for _, graph := range []struct {
		name  string
		edges int
	}{{followShort, 24_000}, {"another", 128_000}} {
		for range graph.edges {
			user := strconv.Itoa(r.IntN(graph.edges / 12))
			records = append(records, []string{graph.name, user, strconv.FormatUint(authors.Uint64(), 10)})
		}
	}
	return records
}

// fanOut is the model of unread posts. It adds each post to the inbox of each follower.
type fanOut struct {
	inboxes   map[uint64]map[uint64]*int64 // number of unread posts, by user and author
	followers map[uint64]map[uint64]*int64 // the same numbers, by author and user
	written   int64                        // number of inbox writes so far
}

func newFanOut(edges []edge) *fanOut {
	f := &fanOut{inboxes: map[uint64]map[uint64]*int64{}, followers: map[uint64]map[uint64]*int64{}}
	for _, e := range edges {
		f.follow(e.user, e.author)
	}
	return f
}

// follow makes a user follow an author with nothing unread, unless the user follows the
// author already.
func (f *fanOut) follow(user, author uint64) {
	if _, does := f.inboxes[user][author]; does {
		return
	}
	unread := new(int64)
	for _, side := range []struct {
		in       map[uint64]map[uint64]*int64
		key, sub uint64
	}{{f.inboxes, user, author}, {f.followers, author, user}} {
		if side.in[side.key] == nil {
			side.in[side.key] = map[uint64]*int64{}
		}
		side.in[side.key][side.sub] = unread
	}
}

func (f *fanOut) unfollow(user, author uint64) {
	delete(f.inboxes[user], author)
	delete(f.followers[author], user)
}

// read marks all posts of an author as seen by a user.
func (f *fanOut) read(user, author uint64) {
	if unread := f.inboxes[user][author]; unread != nil {
		*unread = 0
	}
}

func (f *fanOut) post(author uint64) {
	for _, unread := range f.followers[author] {
		*unread++
		f.written++
	}
}

// unread returns the number of a user's unread posts, by author and in total.
func (f *fanOut) unread(user uint64) (detail map[string]int64, sum int64) {
	detail = map[string]int64{}
	for author, n := range f.inboxes[user] {
		detail[strconv.FormatUint(author, 10)] = *n
		sum += *n
	}
	return detail, sum
}

// users returns all users who ever followed somebody.
func (f *fanOut) users() []uint64 { return slices.Sorted(maps.Keys(f.inboxes)) }

// authorsOf returns a user's followees.
func (f *fanOut) authorsOf(user uint64) []uint64 { return slices.Sorted(maps.Keys(f.inboxes[user])) }

// authorsOfItems assigns the item with the most events to the author with the most followers, the
// next item to the next author, and so on. So popular authors post the most.
func (f *fanOut) authorsOfItems(events [][]string) map[string]uint64 {
	authors := slices.Collect(maps.Keys(f.followers))
	slices.SortFunc(authors, func(a, b uint64) int {
		return cmp.Or(cmp.Compare(len(f.followers[b]), len(f.followers[a])), cmp.Compare(a, b))
	})
	count := map[string]int{}
	for _, e := range events {
		count[e[0]]++
	}
	items := slices.Collect(maps.Keys(count))
	slices.SortFunc(items, func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	by := map[string]uint64{}
	for rank, item := range items {
		by[item] = authors[rank%len(authors)]
	}
	return by
}
