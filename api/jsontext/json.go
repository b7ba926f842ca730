// Package jsontext appends values of JSON answers, ids as strings. It owns no buffer, and reads
// nothing: internal/strictjson does.
package jsontext

import (
	"encoding/json"
	"strconv"
)

// AppendID appends an id, which is always a string: JavaScript's numbers end at
// 2^53.
func AppendID(dst []byte, id uint64) []byte {
	dst = append(dst, '"')
	dst = strconv.AppendUint(dst, id, 10)
	return append(dst, '"')
}

// Comma appends one before all members but the first.
func Comma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

// AppendIDs appends ids as an array.
func AppendIDs(dst []byte, ids []uint64) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		dst = AppendID(Comma(dst, i), id)
	}
	return append(dst, ']')
}

// AppendNumber appends "name":value.
func AppendNumber(dst []byte, name string, value int64) []byte {
	dst = append(append(append(dst, '"'), name...), `":`...)
	return strconv.AppendInt(dst, value, 10)
}

// AppendBool appends "name":value.
func AppendBool(dst []byte, name string, value bool) []byte {
	dst = append(append(append(dst, '"'), name...), `":`...)
	return strconv.AppendBool(dst, value)
}

// AppendString appends text of any bytes as a JSON string.
func AppendString(dst []byte, text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic("a string has no JSON form: " + err.Error())
	}
	return append(dst, quoted...)
}

// AppendInts appends values as an array.
func AppendInts(dst []byte, values []int) []byte {
	dst = append(dst, '[')
	for i, v := range values {
		dst = strconv.AppendInt(Comma(dst, i), int64(v), 10)
	}
	return append(dst, ']')
}
