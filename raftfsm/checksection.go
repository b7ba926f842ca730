package raftfsm

import (
	"fmt"

	"github.com/countd/countd/engine"
)

// CheckSection returns how many ops a request's section has. It fails for what
// no RequestWriter makes, which in an entry would end every replica, and with
// see's error. see, unless it is nil, gets each op in its turn and does not
// keep it.
func CheckSection(section []byte, see func(key uint64, op *engine.Op) error) (ops int, err error) {
	kind, payload, rest, err := nextSection(section)
	if err != nil {
		return 0, err
	}
	if len(rest) > 0 {
		return 0, fmt.Errorf("%w: %d bytes behind the section", errEntry, len(rest))
	}
	_, payload, err = parseIdentity(kind, payload)
	if err != nil {
		return 0, err
	}
	var b batch
	if err := b.requestOps(payload); err != nil {
		return 0, err
	}
	start := 0
	for i := 0; see != nil && i < len(b.ops); i++ {
		b.ops[i].Cells = b.cells[start:b.ends[i]]
		start = b.ends[i]
		if err := see(b.ops[i].ID, &b.ops[i]); err != nil {
			return 0, err
		}
	}
	return len(b.ops), nil
}
