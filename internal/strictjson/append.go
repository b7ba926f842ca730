package strictjson

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendID appends the number of an id. An id is always a string, because JavaScript's numbers are
// exact only up to 2^53.
func AppendID(dst []byte, id uint64) []byte {
	dst = append(dst, '"')
	dst = strconv.AppendUint(dst, id, 10)
	return append(dst, '"')
}

// AppendString appends a text as a string. It replaces bytes that are not UTF-8.
func AppendString[T string | []byte](dst []byte, text T) []byte {
	dst, _ = jsontext.AppendQuote(dst, text) // the error only reports such bytes
	return dst
}
