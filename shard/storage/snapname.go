package storage

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// snapName is the name of a snapshot: INDEX-TERM-NUMBER, in decimal. raft and the store of cold
// rows use it as the snapshot's id.
type snapName struct {
	index, term uint64
	// number increases with every snapshot begun in the directory. It orders snapshots of the same
	// log index, which may name different cold rows.
	number uint64
}

// A snapshot's file is named by its snapName and snapSuffix. While the file is written,
// snapTmpSuffix follows.
const (
	snapSuffix    = ".snap"
	snapTmpSuffix = ".tmp"
)

func (n snapName) String() string { return fmt.Sprintf("%d-%d-%d", n.index, n.term, n.number) }

func (n snapName) compare(m snapName) int {
	return cmp.Or(cmp.Compare(n.index, m.index), cmp.Compare(n.term, m.term), cmp.Compare(n.number, m.number))
}

// parseSnapName parses the output of String. It accepts only the spelling that String returns.
func parseSnapName(s string) (snapName, error) {
	var n [3]uint64
	parts := strings.Split(s, "-")
	if len(parts) == len(n) {
		for i, p := range parts {
			n[i], _ = strconv.ParseUint(p, 10, 64)
		}
	}
	if name := (snapName{n[0], n[1], n[2]}); name.String() == s {
		return name, nil
	}
	return snapName{}, fmt.Errorf("%w: %q is not the name of a snapshot", ErrDamaged, s)
}
