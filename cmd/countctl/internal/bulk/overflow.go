package bulk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/countd/countd/client"
)

const (
	// overflowIDsMax bounds the ids in each OverflowRows. It keeps the progress file small, because
	// the file is written every second.
	overflowIDsMax = 1000
	// overflowIDsShown is the maximum number of ids that a message names.
	overflowIDsShown = 5
)

// Overflows describes the rows that the server did not add, or perhaps did not add, because the sum
// of their id does not fit an int64.
type Overflows struct {
	Refused OverflowRows `json:"refused,omitzero"` // not added
	Unknown OverflowRows `json:"unknown,omitzero"` // some of these rows were not added; which ones is unknown, because an answer was lost
}

// OverflowRows describes rows with the same outcome.
type OverflowRows struct {
	Rows int64       `json:"rows"`
	IDs  []client.ID `json:"ids"` // the first 1,000 different ids of the rows, in the order of the file
}

// Rows returns the number of rows that the import does not report as added.
func (o Overflows) Rows() int64 { return o.Refused.Rows + o.Unknown.Rows }

// String describes the refused and the unknown rows in one line.
func (o Overflows) String() string {
	var text []string
	if r := o.Refused; r.Rows > 0 {
		text = append(text, fmt.Sprintf("not added, because the sum does not fit a signed 64-bit integer: %v", r))
	}
	if r := o.Unknown; r.Rows > 0 {
		text = append(text, fmt.Sprintf("some not added for that cause, and the answer that named them was lost: %v", r))
	}
	return strings.Join(text, "; ")
}

// String returns the number of rows and the first ids.
func (r OverflowRows) String() string {
	var ids []string
	for _, id := range r.IDs[:min(len(r.IDs), overflowIDsShown)] {
		ids = append(ids, id.String())
	}
	if len(r.IDs) > overflowIDsShown {
		ids = append(ids, "…")
	}
	noun := "rows"
	if r.Rows == 1 {
		noun = "row"
	}
	return fmt.Sprintf("%d %s of id %s", r.Rows, noun, strings.Join(ids, ", "))
}

func (o *Overflows) merge(after Overflows) {
	o.Refused.merge(after.Refused)
	o.Unknown.merge(after.Unknown)
}

func (r *OverflowRows) merge(after OverflowRows) {
	r.Rows += after.Rows
	for _, id := range after.IDs {
		r.name(id)
	}
}

func (r *OverflowRows) name(id client.ID) {
	if len(r.IDs) < overflowIDsMax && !slices.Contains(r.IDs, id) {
		r.IDs = append(r.IDs, id)
	}
}

// valid reports whether o is possible after that many rows.
func (o Overflows) valid(rows int64) bool {
	for _, r := range []OverflowRows{o.Refused, o.Unknown} {
		if r.Rows < 0 || r.Rows > rows || len(r.IDs) > overflowIDsMax || int64(len(r.IDs)) > r.Rows {
			return false
		}
	}
	return o.Rows() <= rows
}

// refuseAll returns results that refuse each id of the cut.
func (c *cut) refuseAll() []client.OpResult {
	var all []client.OpResult
	for _, op := range c.sums.Ops() {
		all = append(all, client.OpResult{ID: op.ID})
	}
	return all
}

// overflow records the rows of the cut that a server's answer names as refused or unknown.
func (c *cut) overflow(answer client.WriteResult) {
	fates := map[client.ID]*OverflowRows{}
	for _, id := range answer.Unknown {
		fates[id] = &c.overflows.Unknown
	}
	for _, op := range answer.Refused {
		fates[op.ID] = &c.overflows.Refused
	}
	if len(fates) == 0 {
		return
	}
	for _, id := range c.ids {
		if fate := fates[id]; fate != nil {
			fate.Rows++
			fate.name(id)
		}
	}
}
