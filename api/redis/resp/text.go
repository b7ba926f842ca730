package resp

import (
	"bytes"
	"fmt"
	"strings"
)

// IsHTTP reports whether a line belongs to an HTTP request. A web page may make a browser send an
// HTTP request with commands in its body. So the caller closes the connection, as Redis does.
func IsHTTP(name []byte) bool {
	return bytes.EqualFold(name, []byte("post")) || bytes.EqualFold(name, []byte("host:"))
}

// UnknownCommand returns Redis's error for an unknown command.
func UnknownCommand(args [][]byte) string {
	var text strings.Builder
	fmt.Fprintf(&text, "ERR unknown command '%s', with args beginning with: ", Shown(args[0]))
	for _, arg := range args[1:] {
		if text.Len() > 2*shownBytesMax {
			break
		}
		fmt.Fprintf(&text, "'%s' ", Shown(arg))
	}
	return text.String()
}

// shownBytesMax bounds how much of a key an error message repeats.
const shownBytesMax = 128

// Shown shortens a client's bytes for an error message.
func Shown(text []byte) string { return string(text[:min(len(text), shownBytesMax)]) }
