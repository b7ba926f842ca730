package resp

import (
	"fmt"
	"strings"
)

// Hello holds the arguments of HELLO. The caller sets Name and RESP3 to those of the connection.
type Hello struct {
	Name        string
	RESP3       bool
	User, Token []byte // nil without AUTH
}

// Parse parses the arguments of HELLO. It returns the error text, or "".
func (h *Hello) Parse(args [][]byte) (fault string) {
	if len(args) > 1 {
		version, ok := ParseInt(args[1])
		if !ok {
			return "ERR Protocol version is not an integer or out of range"
		}
		if version != 2 && version != 3 {
			return "NOPROTO unsupported protocol version"
		}
		h.RESP3 = version == 3
	}
	for i := 2; i < len(args); {
		switch option := strings.ToLower(string(args[i])); {
		case option == "auth" && i+2 < len(args):
			h.User, h.Token = args[i+1], args[i+2]
			i += 3
		case option == "setname" && i+1 < len(args):
			if !ValidName(args[i+1]) {
				return ErrBadName
			}
			h.Name = string(args[i+1])
			i += 2
		default:
			return fmt.Sprintf("ERR Syntax error in HELLO option '%s'", Shown(args[i]))
		}
	}
	return ""
}

// clientNameBytesMax bounds a connection's name, which the client sets.
const clientNameBytesMax = 256

// ErrBadName is the error for a name that ValidName refuses.
const ErrBadName = "ERR Client names cannot contain spaces, newlines or special characters."

// ValidName reports whether a client may give its connection a name.
func ValidName(name []byte) bool {
	for _, b := range name {
		if b < '!' || b > '~' {
			return false
		}
	}
	return len(name) <= clientNameBytesMax
}
