package counters

import "github.com/countd/countd/engine"

// RefusalError is why a shard refused an op on a row or on a set, in the words of each protocol.
type RefusalError struct {
	Code    string // error code of the HTTP API
	Problem string // fault of the value that the op gives
	Redis   string // error of the Redis protocol
}

func (r *RefusalError) Error() string { return r.Problem }

// overflow is the refusal of a sum. It is read only.
var overflow = &RefusalError{
	Code:    "overflow",
	Problem: "the sum is not a signed 64-bit integer",
	Redis:   "ERR increment or decrement would overflow",
}

// RefusalOf returns why a shard refused an op.
func RefusalOf(engine.Overflow) *RefusalError { return overflow }

// Refusable implements raftfsm.Ops. Only an addition overflows. A read is an addition of 0, which does
// not.
func (o Ops) Refusable(op int, _ []int64) (column uint8, could bool) {
	if o[op].OfMember() {
		return o[op].Cells[0].Column, true
	}
	if o[op].Kind != engine.OpAdd {
		return 0, false
	}
	for _, c := range o[op].Cells {
		if c.Value != 0 && c.Column&engine.FloorMark == 0 {
			return c.Column, true
		}
	}
	return 0, false
}
