package raftfsm

import (
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/dedup"
)

// Result is the answer of Apply to an entry with ops. The proposer owns it.
type Result struct {
	Index     uint64
	Width     int                    // number of columns of each row
	Modulus   uint32                 // modulus of the shard's route, which explains why requests of the entry were misrouted; 0 for an unborn shard
	Rows      []int64                // a row for each op of the entry, right after the op
	Overflows []engine.Overflow      // refused ops, ascending by their number in the entry
	Cuts      []engine.Cut           // deltas that bounds changed, ascending by the number of their op in the entry
	Changed   []int                  // numbers of the ops that changed a set of members, ascending
	outcomes  []dedup.Outcome        // by request of the entry; nil if all were applied
	met       []int64                // by request, see dedup.Memory.Met; nil if all were applied
	use       dedup.Use              // the use of each new key of the entry, without names unless another node reported the result
	judge     dedup.JudgeNames       // the names of this shard as a judge
	positions []dedup.PositionAnswer // by request, see Position; nil without sections of sources
}

// NewResult returns the result of an entry of one request, as another node reported it.
func NewResult(index uint64, width int, rows []int64, overflows []engine.Overflow, outcome dedup.Outcome) *Result {
	r := &Result{Index: index, Width: width, Rows: rows, Overflows: overflows}
	if outcome != dedup.Applied {
		r.outcomes = []dedup.Outcome{outcome}
	}
	return r
}

// Outcome returns the outcome of one of the entry's requests.
func (r *Result) Outcome(request int) dedup.Outcome {
	if r.outcomes == nil {
		return dedup.Applied
	}
	return r.outcomes[request]
}

// Use returns the use of the key of one of the entry's requests. The result is valid only if this
// shard decided about the key and applied the request, now or earlier.
func (r *Result) Use(request int) dedup.Use {
	use := r.use
	if r.Outcome(request) != dedup.Applied && r.met != nil {
		use.Met = r.met[request]
	}
	if r.judge != nil {
		use.Names = r.judge.At(use.Met)
	}
	return use
}

// SetUse sets the value of Use for the request of a NewResult.
func (r *Result) SetUse(use dedup.Use) { r.use = use }

// Position returns the position of the shard in the partition of a section of a source, right after
// that section. request is the number of the section in the entry. For any other request, Position
// returns false or an empty answer.
func (r *Result) Position(request int) (answer dedup.PositionAnswer, ok bool) {
	if request >= len(r.positions) {
		return answer, false
	}
	return r.positions[request], true
}

// SetPosition sets the value of Position for the request of a NewResult.
func (r *Result) SetPosition(answer dedup.PositionAnswer) {
	r.positions = []dedup.PositionAnswer{answer}
}
