package api

import (
	"strconv"
)

// appendID appends an id, which is always a string: JavaScript's numbers end at
// 2^53.
func appendID(dst []byte, id uint64) []byte {
	dst = append(dst, '"')
	dst = strconv.AppendUint(dst, id, 10)
	return append(dst, '"')
}

// comma appends one before all members but the first.
func comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

func appendIDs(dst []byte, ids []uint64) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendID(dst, id)
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

const (
	serverName      = "countd"
	contentTypeJSON = "application/json"
)
