package api

import (
	"encoding/json"
	"strconv"
)

// The functions below append values of JSON to dst, and allocate only to grow it.

// appendID appends an id. An id is always a string, because JavaScript's numbers are exact only up
// to 2^53.
func appendID(dst []byte, id uint64) []byte {
	dst = append(dst, '"')
	dst = strconv.AppendUint(dst, id, 10)
	return append(dst, '"')
}

// comma appends a comma, except before the first member.
func comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

// appendIDs appends ids as an array.
func appendIDs(dst []byte, ids []uint64) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		dst = appendID(comma(dst, i), id)
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

// appendString appends text of any bytes as a JSON string.
func appendString(dst []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic("a string has no JSON form: " + err.Error())
	}
	return append(dst, quoted...)
}

// appendInts appends values as an array.
func appendInts(dst []byte, values []int) []byte {
	dst = append(dst, '[')
	for i, v := range values {
		dst = strconv.AppendInt(comma(dst, i), int64(v), 10)
	}
	return append(dst, ']')
}
