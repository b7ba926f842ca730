package names

import (
	"slices"
	"strconv"

	"github.com/countd/countd/shard"
)

// Text is a text of a request whose number was not in memory when the request was parsed.
type Text struct {
	Space, Text string
	Use         Use    // the most that an op of the request does with the text
	Number      uint64 // set by Settle; 0 for a text that has no number
	Err         error  // set by Settle: why the number is unknown
	asked       Use    // what Settle has asked for
}

// Use is what an op does with a text. It decides what Settle does if the text has no number.
type Use uint8

const (
	// Reads is for an op that only reads: the number is 0, perhaps because the nearest replica lags.
	Reads Use = 1 + iota
	// Removes is for a write that only removes: the number is 0, because the leader knows none.
	Removes
	// Adds is for any other write: the text gets a number.
	Adds
)

// Request collects the texts of a request, each once, so that Settle looks up all of them together.
// The zero value is empty. It is not safe for concurrent use.
type Request struct {
	texts map[[2]string]*Text // by space and text
	// Final makes Number return 0, without a Text, for a text that is not in memory and has no number:
	// Settle was called, and the request is parsed again.
	Final bool
}

// Number returns the number of an id that Valid accepts. If it is not in memory, Number returns 0 and
// the Text that Settle looks up.
func (r *Request) Number(n *Names, space string, id []byte) (uint64, *Text) {
	if number, ok := n.Cached(space, id); ok {
		return number, nil
	}
	t := r.texts[[2]string{space, string(id)}]
	switch {
	case t == nil:
		t = &Text{Space: space, Text: string(id)}
		r.Add(t)
	case r.Final:
		return t.Number, nil
	}
	return 0, t
}

// Add adds a text of another request.
func (r *Request) Add(t *Text) {
	if r.texts == nil {
		r.texts = map[[2]string]*Text{}
	}
	r.texts[[2]string{t.Space, t.Text}] = t
}

// Reset forgets all texts.
func (r *Request) Reset() { r.texts = nil }

// question is a call for several texts.
type question struct {
	space string
	use   Use
	texts []*Text
}

// Settle sets Number, or Err, of texts. It calls Find and Assign once for each space, all by one call of
// together, which may run them concurrently.
func (n *Names) Settle(texts []*Text, opt *shard.ReadOptions, w *shard.Write, together func(calls int, run func(i int))) {
	var all []question
	for _, t := range texts {
		if t.asked >= t.Use || t.Number != 0 {
			continue
		}
		t.asked = t.Use
		at := slices.IndexFunc(all, func(q question) bool { return q.space == t.Space && q.use == t.Use })
		if at < 0 {
			at, all = len(all), append(all, question{space: t.Space, use: t.Use})
		}
		all[at].texts = append(all[at].texts, t)
	}
	together(len(all), func(i int) {
		q := &all[i]
		ids, numbers := make([]string, len(q.texts)), make([]uint64, len(q.texts))
		for i, t := range q.texts {
			ids[i] = t.Text
		}
		var err error
		switch q.use {
		case Adds:
			err = n.Assign(q.space, ids, numbers, w)
		case Removes:
			err = n.Find(q.space, ids, numbers, latest(w.Deadline))
		default:
			err = n.Find(q.space, ids, numbers, opt)
		}
		for i, t := range q.texts {
			t.Number, t.Err = numbers[i], err
		}
	})
}

// Shown has the texts of the ids of an answer. It is nil if the ids are numbers.
type Shown []string

// Show returns the texts of ids, which are numbers if space is "".
func (n *Names) Show(space string, ids []uint64, opt *shard.ReadOptions) (Shown, error) {
	if space == "" {
		return nil, nil
	}
	s := make(Shown, len(ids))
	if len(ids) == 0 {
		return s, nil
	}
	return s, n.Texts(space, ids, s, opt)
}

// Translate returns a function that replaces ids of the space from by the ids with the same texts in
// the space to, and by 0 for a text without one there. The text of a number is its digits. It returns
// nil if the ids are the same, and false if from has texts and to has numbers.
func (n *Names) Translate(from, to string) (ids func(ids []uint64, opt *shard.ReadOptions) error, ok bool) {
	if from == to || to == "" {
		return nil, from == to
	}
	return func(ids []uint64, opt *shard.ReadOptions) error {
		texts, err := n.Show(from, ids, opt)
		if err != nil {
			return err
		}
		if texts == nil {
			for _, id := range ids {
				texts = append(texts, strconv.FormatUint(id, 10))
			}
		}
		return n.Find(to, texts, ids, opt)
	}, true
}

// AppendTo appends the id with index i: its text, or its digits. The text of an erased id is "".
func (s Shown) AppendTo(dst []byte, i int, id uint64) []byte {
	if s == nil {
		return strconv.AppendUint(dst, id, 10)
	}
	return append(dst, s[i]...)
}

// IDs returns the ids of the elements of an answer.
func IDs[E any](all []E, id func(E) uint64) []uint64 {
	ids := make([]uint64, len(all))
	for i, e := range all {
		ids[i] = id(e)
	}
	return ids
}
