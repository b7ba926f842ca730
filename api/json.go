package api

import (
	"strconv"

	"github.com/countd/countd/names"
)

// The slots of names.Slots: the id in the path, the first id of a list in the body, which the others
// follow, and the id and the member of the first op. Each op has two slots.
const (
	pathSlot = iota
	listSlot
	opSlot     = listSlot
	memberSlot = opSlot + 1
)

// The functions below append values of JSON to dst, and allocate only to grow it.

// comma appends a comma, except before the first member.
func comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

// appendIDs appends ids as an array. texts is a result of Slots.Shown.
func appendIDs(dst []byte, ids []uint64, texts names.Shown) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		dst = texts.AppendJSON(comma(dst, i), i, id)
	}
	return append(dst, ']')
}

// appendNumber appends "name":value.
func appendNumber(dst []byte, name string, value int64) []byte {
	dst = append(append(append(dst, '"'), name...), `":`...)
	return strconv.AppendInt(dst, value, 10)
}

// appendBool appends "name":value.
func appendBool(dst []byte, name string, value bool) []byte {
	dst = append(append(append(dst, '"'), name...), `":`...)
	return strconv.AppendBool(dst, value)
}

// appendInts appends values as an array.
func appendInts(dst []byte, values []int) []byte {
	dst = append(dst, '[')
	for i, v := range values {
		dst = strconv.AppendInt(comma(dst, i), int64(v), 10)
	}
	return append(dst, ']')
}
