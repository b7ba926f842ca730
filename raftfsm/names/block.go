package names

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

// A block is the body that holds the texts of blockSize consecutive numbers. In memory, on disk and in
// snapshots:
//
//	slots (1) | slot … by number
//
//	slot: 0 for a number without a text, or
//	      length of the text (1) | text, or
//	      129 | the 16 bytes of a UUID, or 130 | the 16 bytes of a ULID
//
// Slots of numbers without a text are left out at the end. A block without texts has no body. A text that
// has one of the short forms is never stored in the long one, so equal texts have equal slots.
const (
	blockSize = 64
	slotUUID  = BytesMax + 1
	slotULID  = BytesMax + 2
	binBytes  = 16 // bytes of a UUID or ULID
)

// blockOf returns the key of the block of a number, and the number's slot. No block has the key 0.
func blockOf(number uint64) (key uint64, slot int) {
	return number/blockSize + 1, int(number % blockSize)
}

// numberOf is the inverse of blockOf.
func numberOf(key uint64, slot int) uint64 { return (key-1)*blockSize + uint64(slot) }

// nextSlot returns the first slot of slots, and those after it.
func nextSlot(slots []byte) (slot, rest []byte) {
	n := 1 + int(slots[0])
	if slots[0] > BytesMax {
		n = 1 + binBytes
	}
	return slots[:n], slots[n:]
}

// slotAt returns the bytes of a slot, or nil if the number has no text.
func slotAt(body []byte, slot int) []byte {
	if len(body) == 0 || slot >= int(body[0]) {
		return nil
	}
	slots := body[1:]
	for range slot {
		_, slots = nextSlot(slots)
	}
	if found, _ := nextSlot(slots); len(found) > 1 {
		return found
	}
	return nil
}

// setSlot appends to dst the body with another slot; nil removes the text. The result is empty if no
// text is left.
func setSlot(dst, body []byte, at int, slot []byte) []byte {
	if slot == nil {
		slot = []byte{0}
	}
	n, slots := 0, []byte(nil)
	if len(body) > 0 {
		n, slots = int(body[0]), body[1:]
	}
	first := len(dst)
	dst = append(dst, 0)
	filled, end := 0, len(dst) // up to the last text
	for i := range max(n, at+1) {
		was := []byte{0}
		if i < n {
			was, slots = nextSlot(slots)
		}
		if i == at {
			was = slot
		}
		if dst = append(dst, was...); len(was) > 1 {
			filled, end = i+1, len(dst)
		}
	}
	if filled == 0 {
		return dst[:first]
	}
	dst[first] = byte(filled)
	return dst[:end]
}

// appendSlot appends the slot of a text.
func appendSlot[T string | []byte](dst []byte, text T) []byte {
	var bin [binBytes]byte
	switch {
	case len(text) == uuidBytes && parseUUID(&bin, text):
		return append(append(dst, slotUUID), bin[:]...)
	case len(text) == ulidBytes && parseULID(&bin, text):
		return append(append(dst, slotULID), bin[:]...)
	}
	return append(append(dst, byte(len(text))), text...)
}

// appendText appends the text of a slot.
func appendText(dst, slot []byte) []byte {
	switch slot[0] {
	case slotUUID:
		return appendUUID(dst, slot[1:])
	case slotULID:
		return appendULID(dst, slot[1:])
	}
	return append(dst, slot[1:]...)
}

// checkBlock refuses a body that setSlot does not make, and a text for the number 0 or from next on.
// It calls visit with each text.
func checkBlock(r *wire.Reader, key, next uint64, visit func(number uint64, slot []byte)) (body []byte, err error) {
	damaged := func(what string) error {
		return fmt.Errorf("%w: block %d of names: %s", codec.ErrSnapshot, key, what)
	}
	from := r.Rest
	n := int(r.Byte())
	if n < 1 || n > blockSize || key < 1 || key > NumberMax/blockSize+1 {
		return nil, damaged("slots")
	}
	for i := range n {
		length := r.Byte()
		size := uint64(length)
		if length > slotULID {
			return nil, damaged("a slot of another form")
		} else if length > BytesMax {
			size = binBytes
		}
		rest := r.Take(size)
		if r.Err != nil {
			return nil, damaged(r.Err.Error())
		}
		number := numberOf(key, i)
		switch {
		case length == 0 && i == n-1:
			return nil, damaged("no text in the last slot")
		case length == 0:
			continue
		case number == 0 || number >= next:
			return nil, damaged(fmt.Sprintf("a text for number %d", number))
		}
		slot := from[len(from)-len(r.Rest)-len(rest)-1 : len(from)-len(r.Rest)]
		text := appendText(nil, slot)
		if !Valid(text) || string(appendSlot(nil, text)) != string(slot) {
			return nil, damaged(fmt.Sprintf("the text %q", text))
		}
		visit(number, slot)
	}
	return from[:len(from)-len(r.Rest)], nil
}

const (
	uuidBytes = 36
	ulidBytes = 26
	// ulidDigits are Crockford's digits of base 32.
	ulidDigits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)

// uuidGroups are the hexadecimal digits of a UUID between its hyphens.
var uuidGroups = [...]struct{ from, to int }{{0, 8}, {9, 13}, {14, 18}, {19, 23}, {24, 36}}

// parseUUID sets bin to the bytes of a UUID of uuidBytes, in lower case with hyphens.
func parseUUID[T string | []byte](bin *[binBytes]byte, text T) bool {
	at := 0
	for i, g := range uuidGroups {
		if i > 0 && text[g.from-1] != '-' {
			return false
		}
		for from := g.from; from < g.to; from += 2 {
			high, ok1 := hexDigit(text[from])
			low, ok2 := hexDigit(text[from+1])
			if !ok1 || !ok2 {
				return false
			}
			bin[at] = high<<4 | low
			at++
		}
	}
	return true
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}

func appendUUID(dst, bin []byte) []byte {
	at := 0
	for i, g := range uuidGroups {
		if i > 0 {
			dst = append(dst, '-')
		}
		n := (g.to - g.from) / 2
		dst = hex.AppendEncode(dst, bin[at:at+n])
		at += n
	}
	return dst
}

// parseULID sets bin to the bytes of a ULID of ulidBytes: 130 bits of which the first two are 0.
func parseULID[T string | []byte](bin *[binBytes]byte, text T) bool {
	if text[0] > '7' {
		return false
	}
	high, low := uint64(0), uint64(0)
	for i := range len(text) {
		digit := strings.IndexByte(ulidDigits, text[i])
		if digit < 0 {
			return false
		}
		high, low = high<<5|low>>59, low<<5|uint64(digit)
	}
	for i := range 8 {
		bin[i], bin[8+i] = byte(high>>(56-8*i)), byte(low>>(56-8*i))
	}
	return true
}

func appendULID(dst, bin []byte) []byte {
	high, low := uint64(0), uint64(0)
	for i := range 8 {
		high, low = high<<8|uint64(bin[i]), low<<8|uint64(bin[8+i])
	}
	var text [ulidBytes]byte
	for i := ulidBytes - 1; i >= 0; i-- {
		text[i] = ulidDigits[low&31]
		low, high = low>>5|high<<59, high>>5
	}
	return append(dst, text[:]...)
}
