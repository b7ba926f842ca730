package gate

import (
	"bytes"
	"encoding/hex"
)

// slash stands for an encoded slash, which would divide a name. Neither it nor notUTF8 is in a name,
// because names are UTF-8.
const slash, notUTF8 = 0xFF, 0xFE

// WithSlashes replaces, in place, the bytes that stand for slashes in a result of Unescaped.
func WithSlashes(name []byte) []byte {
	for i, b := range name {
		if b == slash {
			name[i] = '/'
		}
	}
	return name
}

// Unescaped decodes a path's percent-encoding, and returns false if it is invalid. It replaces an
// encoded slash, which would divide a name.
func Unescaped(path []byte) ([]byte, bool) {
	if bytes.IndexByte(path, '%') < 0 {
		return path, true
	}
	plain := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		b := path[i]
		if b == '%' {
			if i+2 >= len(path) {
				return nil, false
			}
			var decoded [1]byte
			if _, err := hex.Decode(decoded[:], path[i+1:i+3]); err != nil {
				return nil, false
			}
			if b = decoded[0]; b == '/' {
				plain = append(plain, slash)
				i += 2
				continue
			}
			i += 2
		}
		if b == slash {
			b = notUTF8
		}
		plain = append(plain, b)
	}
	return plain, true
}
