package storage

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// snapName is the name of a snapshot: INDEX-TERM-NUMBER, in decimal. raft and the store of cold
// rows know a snapshot by it.
type snapName struct {
	index, term uint64
	// number rises with every snapshot that is begun in the directory. It orders snapshots of
	// one entry, which differ in the cold rows that they name.
	number uint64
}

// The file of a snapshot is its name with snapSuffix, and snapTmpSuffix while it is written.
const (
	snapSuffix    = ".snap"
	snapTmpSuffix = ".tmp"
)

func (n snapName) String() string { return fmt.Sprintf("%d-%d-%d", n.index, n.term, n.number) }

func (n snapName) compare(m snapName) int {
	return cmp.Or(cmp.Compare(n.index, m.index), cmp.Compare(n.term, m.term), cmp.Compare(n.number, m.number))
}

// parseSnapName is the reverse of String. It accepts one spelling of a name only.
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
