package names

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/shard"
)

// Slots has the ids of one request of HTTP: their numbers and, in slots that the caller chooses, the
// texts that the answer shows. An id of a space that is "" is a number itself, and has no text.
//
// The caller decodes its request twice if Complete returns false. The first decode finds out whether the
// request is good, with the number 0 for ids that are not in the cache of Names. So a bad request
// names nothing. The caller then calls Find or Assign, and decodes again.
//
// The zero value has no ids. It is for one goroutine.
type Slots struct {
	Names *Names

	texts [][]byte // by slot; nil for a number
	// space is the space of the last id, whose first group and oldest valid pair are looked up once.
	space string
	group uint32
	since int64
	// numbers has the ids that were not in the cache; 0 for an id without a number.
	numbers map[id]uint64
	unknown []spaceTexts
}

type id struct{ space, text string }

// spaceTexts are different texts of one space whose numbers must be looked up.
type spaceTexts struct {
	space string
	texts []string
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
	*t = Slots{texts: t.texts[:0]}
}

// Complete reports whether all ids were in the cache, or have been looked up.
func (t *Slots) Complete() bool { return len(t.unknown) == 0 }

// Parse returns the number of an id, and keeps its text in a slot. It returns 0 for an id that must
// be looked up first, and for one that Find did not find. It aliases text.
func (t *Slots) Parse(space string, slot int, text []byte) (number uint64, problem string) {
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
	if len(t.numbers) == 0 { // the usual case, which allocates nothing
		if number, ok := t.cached(space, text); ok {
			return number
		}
		t.numbers = map[id]uint64{}
	}
	new := id{space, string(text)}
	if number, ok := t.numbers[new]; ok {
		return number
	}
	if number, ok := t.cached(space, text); ok {
		return number
	}
	t.numbers[new] = 0
	at := slices.IndexFunc(t.unknown, func(u spaceTexts) bool { return u.space == space })
	if at < 0 {
		at = len(t.unknown)
		t.unknown = append(t.unknown, spaceTexts{space: space})
	}
	t.unknown[at].texts = append(t.unknown[at].texts, new.text)
	return 0
}

// cached does the same as Names.Cached.
func (t *Slots) cached(space string, text []byte) (uint64, bool) {
	if t.space != space {
		ks := t.Names.node.Keyspace(space)
		if ks == nil {
			return 0, false
		}
		t.space, t.group, t.since = space, ks.FirstGroup, t.Names.cache.since()
	}
	return t.Names.cache.number(t.group, text, t.since)
}

// Find looks up the ids of a request that reads.
func (t *Slots) Find(opt *shard.ReadOptions) error {
	return t.lookUp(func(u *spaceTexts, numbers []uint64) error { return t.Names.Find(u.space, u.texts, numbers, opt) })
}

// Assign looks up the ids of a request that writes, and gives numbers to new ones. So the request
// writes no row with the number 0, which would be the row of all unknown ids.
func (t *Slots) Assign(w *shard.Write) error {
	return t.lookUp(func(u *spaceTexts, numbers []uint64) error {
		err := t.Names.Assign(u.space, u.texts, numbers, w)
		if err == nil && slices.Contains(numbers, 0) {
			err = fmt.Errorf("%s gave no number", u.space)
		}
		return err
	})
}

func (t *Slots) lookUp(find func(u *spaceTexts, numbers []uint64) error) error {
	for i := range t.unknown {
		u := &t.unknown[i]
		numbers := make([]uint64, len(u.texts))
		if err := find(u, numbers); err != nil {
			return fmt.Errorf("cannot look up ids: %w", err)
		}
		for i, text := range u.texts {
			t.numbers[id{u.space, text}] = numbers[i]
		}
	}
	t.unknown = nil
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
