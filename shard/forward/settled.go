package forward

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
)

// AppendCuts appends the cuts of a part. first is the number of the part's first op in its entry.
func AppendCuts(dst []byte, cuts []engine.Cut, first int) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(cuts)))
	for _, c := range cuts {
		dst = binary.AppendUvarint(dst, uint64(c.Op-first))
		dst = binary.AppendUvarint(dst, uint64(c.Column))
		dst = binary.AppendVarint(dst, c.Added)
	}
	return dst
}

// ParseCuts parses the cuts of a part with the given number of ops, ascending by op.
func ParseCuts(r *wire.Reader, ops int) []engine.Cut {
	var cuts []engine.Cut
	for range r.Count(3) {
		c := engine.Cut{Op: int(r.UintTo(uint64(ops))), Column: uint8(r.UintTo(engine.ColumnsMax - 1)), Added: r.Int()}
		if c.Op == ops || len(cuts) > 0 && c.Op < cuts[len(cuts)-1].Op {
			r.Fail(fmt.Sprintf("a cut of op %d", c.Op))
			return nil
		}
		cuts = append(cuts, c)
	}
	return cuts
}

// AppendChanged appends the ops of a part that changed a set. Each op is the gap to the previous
// one.
func AppendChanged(dst []byte, changed []int, first int) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(changed)))
	next := first
	for _, op := range changed {
		dst = binary.AppendUvarint(dst, uint64(op-next))
		next = op + 1
	}
	return dst
}

// ParseChanged parses the ops that changed a set, ascending. The part has the given number of ops.
func ParseChanged(r *wire.Reader, ops int) []int {
	changed, next := make([]int, r.Count(1)), 0
	for i := range changed {
		if next += int(r.UintTo(uint64(ops))); next >= ops {
			r.Fail(fmt.Sprintf("a change by op %d", next))
			return nil
		}
		changed[i] = next
		next++
	}
	return changed
}
