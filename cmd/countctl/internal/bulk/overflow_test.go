package bulk

import (
	"slices"
	"testing"

	"github.com/countd/countd/client"
)

func idsUpTo(n int) []client.ID {
	var ids []client.ID
	for id := range n {
		ids = append(ids, client.Number(uint64(id)))
	}
	return ids
}

// If an answer names an id, each row of that id counts as an overflow. An id is recorded once, and
// at most overflowIDsMax ids are recorded.
func TestOverflowsOfAnswers(t *testing.T) {
	refused := func(ids ...client.ID) client.WriteResult {
		var r client.WriteResult
		for _, id := range ids {
			r.Refused = append(r.Refused, client.OpResult{ID: id})
		}
		return r
	}
	unknown := func(ids ...client.ID) client.WriteResult { return client.WriteResult{Unknown: ids} }
	for name, c := range map[string]struct {
		rows    []client.ID
		answers []client.WriteResult // one answer for each cut
		want    Overflows
		text    string
	}{
		"none": {[]client.ID{client.Number(1), client.Number(2)}, []client.WriteResult{{}}, Overflows{}, ""},
		"refused": {[]client.ID{client.Number(40), client.Number(44), client.Number(40), client.Number(48)}, []client.WriteResult{refused(client.Number(40), client.Number(48))},
			Overflows{Refused: OverflowRows{3, []client.ID{client.Number(40), client.Number(48)}}},
			"not added, because the sum does not fit a signed 64-bit integer: 3 rows of id 40, 48"},
		"unknown": {[]client.ID{client.Number(7)}, []client.WriteResult{unknown(client.Number(7))},
			Overflows{Unknown: OverflowRows{1, []client.ID{client.Number(7)}}},
			"some not added for that cause, and the answer that named them was lost: 1 row of id 7"},
		"two cuts": {[]client.ID{client.Number(1), client.Number(2), client.Number(3)}, []client.WriteResult{refused(client.Number(2)), refused(client.Number(1), client.Number(2))},
			Overflows{Refused: OverflowRows{3, []client.ID{client.Number(2), client.Number(1)}}},
			"not added, because the sum does not fit a signed 64-bit integer: 3 rows of id 2, 1"},
		"too many to name": {idsUpTo(overflowIDsMax + 5), []client.WriteResult{refused(idsUpTo(overflowIDsMax + 5)...)},
			Overflows{Refused: OverflowRows{overflowIDsMax + 5, idsUpTo(overflowIDsMax)}},
			"not added, because the sum does not fit a signed 64-bit integer: 1005 rows of id 0, 1, 2, 3, 4, …"},
	} {
		t.Run(name, func(t *testing.T) {
			var all Overflows
			for _, answer := range c.answers {
				cut := &cut{ids: c.rows}
				cut.overflow(answer)
				all.merge(cut.overflows)
			}
			same := all.Refused.Rows == c.want.Refused.Rows && slices.Equal(all.Refused.IDs, c.want.Refused.IDs) &&
				all.Unknown.Rows == c.want.Unknown.Rows && slices.Equal(all.Unknown.IDs, c.want.Unknown.IDs)
			if !same || all.String() != c.text || !all.valid(all.Rows()) || all.Rows() > 0 && all.valid(all.Rows()-1) {
				t.Fatalf("%+v, %v", all, all)
			}
		})
	}
}
