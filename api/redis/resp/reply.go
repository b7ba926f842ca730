package resp

import (
	"strconv"
)

// Replies are appended in the protocol version of the connection:
//
//	+OK\r\n            a word       :12\r\n     a number
//	-ERR text\r\n      an error     $2\r\n12\r\n a string
//	*2\r\n…            an array     %2\r\n…      a map (RESP3; in RESP2 an array of twice as many)
//	$-1\r\n or _\r\n   null         =…\r\ntxt:…  text for people (RESP3; in RESP2 a string)

func appendHead(dst []byte, kind byte, n int64) []byte {
	if n >= 0 && n < 10 {
		return append(dst, kind, byte('0'+n), '\r', '\n')
	}
	dst = strconv.AppendInt(append(dst, kind), n, 10)
	return append(dst, '\r', '\n')
}

func AppendInt(dst []byte, n int64) []byte { return appendHead(dst, ':', n) }

// AppendTruth appends 1 for true and 0 for false, like EXISTS.
func AppendTruth(dst []byte, holds bool) []byte {
	if holds {
		return AppendInt(dst, 1)
	}
	return AppendInt(dst, 0)
}

func AppendArray(dst []byte, n int) []byte { return appendHead(dst, '*', int64(n)) }

func AppendWord(dst []byte, word string) []byte {
	return append(append(append(dst, '+'), word...), '\r', '\n')
}

func AppendOK(dst []byte) []byte { return append(dst, "+OK\r\n"...) }

func AppendBulk[T string | []byte](dst []byte, text T) []byte {
	dst = appendHead(dst, '$', int64(len(text)))
	return append(append(dst, text...), '\r', '\n')
}

// AppendBulkUint appends an id as a string.
func AppendBulkUint(dst []byte, n uint64) []byte {
	var digits [20]byte
	return AppendBulk(dst, strconv.AppendUint(digits[:0], n, 10))
}

// AppendBulkInt appends a number as a string.
func AppendBulkInt(dst []byte, n int64) []byte {
	if n >= 0 && n < 10 {
		return append(dst, '$', '1', '\r', '\n', byte('0'+n), '\r', '\n')
	}
	var digits [20]byte
	return AppendBulk(dst, strconv.AppendInt(digits[:0], n, 10))
}

// AppendError appends an error, whose text begins with its code. It replaces bytes that would end
// the line by spaces.
func AppendError(dst []byte, text string) []byte {
	dst = append(dst, '-')
	for i := range len(text) {
		if c := text[i]; c == '\r' || c == '\n' {
			dst = append(dst, ' ')
		} else {
			dst = append(dst, c)
		}
	}
	return append(dst, '\r', '\n')
}

// AppendNull appends null.
func AppendNull(dst []byte, resp3 bool) []byte {
	if resp3 {
		return append(dst, '_', '\r', '\n')
	}
	return append(dst, "$-1\r\n"...)
}

// AppendNullArray appends a null array.
func AppendNullArray(dst []byte, resp3 bool) []byte {
	if resp3 {
		return append(dst, '_', '\r', '\n')
	}
	return append(dst, "*-1\r\n"...)
}

// AppendMap appends the head of a map of n pairs.
func AppendMap(dst []byte, n int, resp3 bool) []byte {
	if resp3 {
		return appendHead(dst, '%', int64(n))
	}
	return appendHead(dst, '*', 2*int64(n))
}

// AppendSet appends the head of a set of n elements.
func AppendSet(dst []byte, n int, resp3 bool) []byte {
	if resp3 {
		return appendHead(dst, '~', int64(n))
	}
	return appendHead(dst, '*', int64(n))
}

// AppendText appends text that is meant for people, not for programs.
func AppendText(dst []byte, text string, resp3 bool) []byte {
	if !resp3 {
		return AppendBulk(dst, text)
	}
	dst = appendHead(dst, '=', int64(len(text)+len("txt:")))
	return append(append(append(dst, "txt:"...), text...), '\r', '\n')
}
