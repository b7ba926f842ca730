package unread

import (
	"fmt"

	"github.com/countd/countd/raftfsm/catalog"
)

// NameRule is the error for a name that catalog.ValidName refuses.
const NameRule = "not 1 to 63 of a-z, 0-9 and _, from a letter on"

// NameProblem returns the reason why a request must not have this name of a channel or dot after its earlier
// names, or "".
func NameProblem(before []string, name []byte) string {
	switch {
	case !catalog.ValidName(name):
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
