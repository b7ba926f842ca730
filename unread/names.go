package unread

import (
	"fmt"

	"github.com/countd/countd/raftfsm/catalog"
)

// NameRule is the error for a name that catalog.ValidName refuses.
const NameRule = "not 1 to 63 of a-z, 0-9 and _, from a letter on"

// NameProblem returns why a request must not name this channel or dot, or "". earlier has the names
// that the request has named before.
func NameProblem(earlier []string, name []byte) string {
	switch {
	case !catalog.ValidName(name):
		return NameRule
	case len(earlier) == NamesMax:
		return fmt.Sprintf("more than %d", NamesMax)
	}
	for _, other := range earlier {
		if other == string(name) {
			return "given twice"
		}
	}
	return ""
}
