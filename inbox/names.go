package inbox

import (
	"fmt"

	"github.com/countd/countd/raftfsm/catalog"
)

// NameRule is the error for a name that catalog.ValidName refuses.
const NameRule = "not 1 to 63 of a-z, 0-9 and _, from a letter on"

// AppendName appends a name of a channel or dot to the names of a request, or returns the reason
// why the request must not contain it. It reuses an equal string in the spare memory of names,
// because clients poll for the same names repeatedly.
func AppendName(names []string, name []byte) (_ []string, problem string) {
	switch {
	case !catalog.ValidName(name):
		return names, NameRule
	case len(names) == NamesMax:
		return names, fmt.Sprintf("more than %d", NamesMax)
	}
	for _, other := range names {
		if other == string(name) {
			return names, "given twice"
		}
	}
	if n := len(names); n < cap(names) && names[:n+1][n] == string(name) {
		return names[:n+1], ""
	}
	return append(names, string(name)), ""
}
