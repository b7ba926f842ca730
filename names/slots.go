package names

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// Slots has the ids of one request of HTTP: their numbers and, in slots that the caller chooses, the
// texts that the answer shows. An id of a space that is "" is a number itself, and has no text.
//
// The caller decodes its request twice if Complete returns false. The first decode finds out whether the
// request is good, with the number 0 for ids that are not in the cache of Names. So a bad request
// names nothing. The caller then calls Find or Assign, and decodes again.
//
// Assign gives no number to a text that was only parsed while Seeks was set: it stays 0, and the write must
// change nothing by it.
//
// The zero value has no ids. It is for one goroutine.
type Slots struct {
	Names *Names
	// Seeks is set for ids from which a write only removes. See Want.
	Seeks bool
	// Absent means that the last id was looked up and has no number.
	Absent bool

	texts [][]byte // by slot; nil for a number
	// last is the index of the space of the last id in spaces, and since the oldest time of a valid pair.
	last   int
	since  int64
	spaces []spaceIDs
	// remade means that a names keyspace was dropped and made anew since the first decode.
	remade bool
}

// spaceIDs are the ids of one space.
type spaceIDs struct {
	space string
	group uint32 // first group of the names keyspace; 0 if there is none
	// ids has the ids that were not in the cache, by text.
	ids     map[string]slotID
	unknown []string // of ids, those that must be looked up
}

// slotID is an id that was not in the cache.
type slotID struct {
	number uint64 // 0 for an id without a number
	wanted bool   // Assign gives it a number
	known  bool   // the number was looked up; otherwise the id is in unknown
}

// NoSlot is the slot of an id that no answer shows.
const NoSlot = -1

// slotsKept bounds the slots whose memory Reset keeps. The slots of 1,000 ops fit.
const slotsKept = 1 << 11

// Reset forgets the request, but keeps memory for the next one.
func (t *Slots) Reset() {
	if cap(t.texts) > slotsKept {
		t.texts = nil
	}
	clear(t.texts) // do not keep the body alive
	clear(t.spaces)
	*t = Slots{texts: t.texts[:0], spaces: t.spaces[:0]}
}

// Complete reports whether all ids were in the cache, or have been looked up.
func (t *Slots) Complete() bool {
	return !t.remade && !slices.ContainsFunc(t.spaces, func(s spaceIDs) bool { return len(s.unknown) > 0 })
}

// Parse returns the number of an id, and keeps its text in a slot. It returns 0 for an id that must
// be looked up first, and for one that Find did not find. It aliases text.
func (t *Slots) Parse(space string, slot int, text []byte) (number uint64, problem string) {
	t.Absent = false
	if space == "" {
		number, ok := strictjson.ParseUint64(text)
		if !ok {
			return 0, notNumber
		}
		return number, ""
	}
	if !Valid(text) {
		return 0, Rule
	}
	if slot != NoSlot {
		t.Keep(slot, text)
	}
	return t.number(space, text), ""
}

// Keep sets the text in a slot, or nil for a number.
func (t *Slots) Keep(slot int, text []byte) {
	for slot >= len(t.texts) {
		t.texts = append(t.texts, nil)
	}
	t.texts[slot] = text
}

// Hint ends the problem of a text where ids are numbers.
const Hint = `; a keyspace made with "ids":"text" takes any text`

// notNumber is the problem of a text that is an id of no numeric keyspace.
const notNumber = strictjson.NotUint64 + Hint

// Problem returns the problem of a text that is no id of a space.
func Problem(space string) string {
	if space == "" {
		return notNumber
	}
	return Rule
}

// Read does the same as Parse for the JSON string or integer at a cursor. It aliases the cursor's
// data.
func (t *Slots) Read(c *strictjson.Cursor, space string, slot int) (number uint64, problem string) {
	isText := c.Peek() == '"'
	t.Absent = false
	if space == "" {
		number, ok := c.ID()
		switch {
		case ok:
			return number, ""
		case isText:
			return 0, notNumber
		}
		return 0, strictjson.NotUint64
	}
	if !isText {
		digits := c.Number()
		if _, ok := strictjson.ParseUint64(digits); !ok {
			return 0, Rule
		}
		return t.Parse(space, slot, digits)
	}
	start := c.At + 1
	text := c.Str()
	if c.Err != nil {
		return 0, Rule
	}
	if raw := c.Data[start : c.At-1]; len(raw) == len(text) {
		text = raw // there are no escapes, because an escape is longer than what it means
	} else {
		text = bytes.Clone(text)
	}
	return t.Parse(space, slot, text)
}

func (t *Slots) number(space string, text []byte) uint64 {
	s := t.of(space)
	id, known := s.ids[string(text)]
	if known {
		if !t.Seeks {
			s.want(string(text))
		}
		t.Absent = id.known && id.number == 0
		return id.number
	}
	number, known := t.Names.cache.number(s.group, text, t.since)
	if !known {
		s.need(string(text), !t.Seeks)
	}
	return number
}

// Want makes Assign give a number to the text in a slot, although it was parsed while Seeks was set.
func (t *Slots) Want(space string, slot int) {
	if text := t.Text(slot); space != "" && text != nil {
		t.of(space).want(string(text))
	}
}

// want makes Assign give a number to a text that was not in the cache.
func (s *spaceIDs) want(text string) {
	id, there := s.ids[text]
	if !there || id.wanted {
		return
	}
	if id.known && id.number == 0 {
		id.known = false
		s.unknown = append(s.unknown, text)
	}
	id.wanted = true
	s.ids[text] = id
}

// of returns the ids of a space.
func (t *Slots) of(space string) *spaceIDs {
	if t.last < len(t.spaces) && t.spaces[t.last].space == space {
		return &t.spaces[t.last]
	}
	group := t.Names.group(space)
	if t.last = slices.IndexFunc(t.spaces, func(s spaceIDs) bool { return s.space == space }); t.last < 0 {
		t.last = len(t.spaces)
		t.spaces = append(t.spaces, spaceIDs{space: space, group: group})
		t.since = t.Names.cache.since()
	}
	t.remade = t.remade || t.spaces[t.last].group != group
	return &t.spaces[t.last]
}

// need adds a text that must be looked up.
func (s *spaceIDs) need(text string, wanted bool) {
	if s.ids == nil {
		s.ids = map[string]slotID{}
	}
	s.ids[text] = slotID{wanted: wanted}
	s.unknown = append(s.unknown, text)
}

// sought reports whether an unknown id is only looked up.
func (s *spaceIDs) sought(text string) bool { return !s.ids[text].wanted }

// Find looks up the ids of a request that reads.
func (t *Slots) Find(opt *shard.ReadOptions) error {
	return t.lookUp(func(space string, texts []string, numbers []uint64, _ bool) error {
		return t.Names.Find(space, texts, numbers, opt)
	})
}

// Assign looks up the ids of a request that writes, and gives numbers to the wanted ones that are new. So the
// request adds nothing to a row with the number 0, which would be the row of all unknown ids.
func (t *Slots) Assign(w *shard.Write) error {
	return t.lookUp(func(space string, texts []string, numbers []uint64, wanted bool) error {
		if !wanted {
			return t.Names.Find(space, texts, numbers, latest(w.Deadline))
		}
		err := t.Names.Assign(space, texts, numbers, w)
		if err == nil && slices.Contains(numbers, 0) {
			err = fmt.Errorf("%s gave no number", space)
		}
		return err
	})
}

// lookUp calls find for the unknown ids that are not wanted or, if there are none, for the wanted ones. So a request
// that is refused for want of an id gives no numbers to others.
//
// It fails if a keyspace was dropped and made anew since the first decode: the request may have the numbers of one
// and rows of the other. Each decode compares the groups after it has looked up the keyspace of the rows, so such a
// request is never complete.
func (t *Slots) lookUp(find func(space string, texts []string, numbers []uint64, wanted bool) error) error {
	wanted := !slices.ContainsFunc(t.spaces, func(s spaceIDs) bool { return slices.ContainsFunc(s.unknown, s.sought) })
	for i := range t.spaces {
		s := &t.spaces[i]
		texts := s.unknown
		if s.unknown = nil; !wanted {
			s.unknown = slices.DeleteFunc(slices.Clone(texts), s.sought)
			texts = slices.DeleteFunc(texts, func(text string) bool { return !s.sought(text) })
		}
		numbers := make([]uint64, len(texts))
		if len(texts) > 0 {
			if err := find(s.space, texts, numbers, wanted); err != nil {
				return fmt.Errorf("cannot look up ids: %w", err)
			}
		}
		for i, text := range texts {
			s.ids[text] = slotID{number: numbers[i], wanted: wanted, known: true}
		}
		t.remade = t.remade || t.Names.group(s.space) != s.group
	}
	if t.remade {
		return fmt.Errorf("cannot look up ids: %w", errs.ErrUnknownKeyspace)
	}
	t.last = len(t.spaces)
	return nil
}

// Text returns the text in a slot, or nil for a number.
func (t *Slots) Text(slot int) []byte {
	if slot >= len(t.texts) {
		return nil
	}
	return t.texts[slot]
}

// Append appends an id as a JSON string: the text in a slot or else the number.
func (t *Slots) Append(dst []byte, slot int, number uint64) []byte {
	if text := t.Text(slot); text != nil {
		return strictjson.AppendString(dst, text)
	}
	return strictjson.AppendID(dst, number)
}

// Shown returns the texts of n numbers, as Names.Show does. It allocates nothing if space is "".
func (t *Slots) Shown(space string, n int, number func(i int) uint64, opt *shard.ReadOptions) (Shown, error) {
	if space == "" {
		return nil, nil
	}
	numbers := make([]uint64, n)
	for i := range numbers {
		numbers[i] = number(i)
	}
	shown, err := t.Names.Show(space, numbers, opt)
	if err != nil {
		return nil, fmt.Errorf("cannot look up ids: %w", err)
	}
	return shown, nil
}

// AppendJSON does the same as AppendTo, as a JSON string.
func (s Shown) AppendJSON(dst []byte, i int, id uint64) []byte {
	if s == nil {
		return strictjson.AppendID(dst, id)
	}
	return strictjson.AppendString(dst, s[i])
}
