package unread

import "fmt"

// NameRule says of a name that ValidName refuses what is wrong with it.
const NameRule = "not 1 to 63 of a-z, 0-9 and _, from a letter on"

// ValidName reports whether a channel or dot may be called so: as a keyspace.
func ValidName(name []byte) bool {
	const nameBytesMax = 63
	if len(name) < 1 || len(name) > nameBytesMax || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	for _, b := range name {
		if (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '_' {
			return false
		}
	}
	return true
}

// NameProblem says why a channel or dot may not be asked for behind others of its
// kind, or "".
func NameProblem(before []string, name []byte) string {
	switch {
	case !ValidName(name):
		return NameRule
	case len(before) == NamesMax:
		return fmt.Sprintf("more than %d", NamesMax)
	}
	for _, other := range before {
		if other == string(name) {
			return "given twice"
		}
	}
	return ""
}
