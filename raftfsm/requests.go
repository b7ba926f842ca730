package raftfsm

import (
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// requests holds the requests of one entry. The contents of the shard hold their ops.
type requests struct {
	all      []request
	outcomes []dedup.Outcome // by request
	met      []int64         // by request, see dedup.Memory.Met
	// positions holds the answers to sections of sources, by request. The answer for any other
	// request is empty. positions is nil if the entry has no section of a source. The Result owns
	// positions.
	positions []dedup.PositionAnswer
}

// request is one request of an entry, valid until the next entry is decoded.
type request struct {
	id  dedup.RequestID // the name of a producer refers to the bytes of the entry
	end int             // number of ops of the entry up to the end of this request
}

// ops returns the number of the entry's ops.
func (b *requests) ops() int {
	if len(b.all) == 0 {
		return 0
	}
	return b.all[len(b.all)-1].end
}

// decode decodes all ops of an entry into the contents of the shard, in order. The request memory
// decides for each request whether to apply it, and decode voids the ops of a request that must not
// be applied.
func (b *requests) decode(sections []byte, route codec.Route, once *dedup.Memory, held Contents) error {
	b.all, b.outcomes, b.met = b.all[:0], b.outcomes[:0], b.met[:0]
	b.positions = nil
	held.Begin()
	clocked := false
	for len(sections) > 0 {
		kind, payload, rest, err := codec.NextSection(sections)
		if err != nil {
			return err
		}
		switch kind {
		case codec.SectionClock:
			now, limits, err := dedup.ParseClock(payload)
			if err == nil && clocked {
				err = fmt.Errorf("%w: a second clock", codec.ErrEntry)
			}
			if err != nil {
				return err
			}
			once.Tick(now, limits)
			clocked = true
		default:
			err = b.request(kind, payload, route, once, held, clocked)
		}
		if err != nil {
			return err
		}
		sections = rest
	}
	return nil
}

// request decodes one request, and lets the request memory decide whether to apply it. It does not
// pass a request with another route to the request memory, so that the memory keeps no trace of it.
func (b *requests) request(kind byte, p []byte, route codec.Route, once *dedup.Memory, held Contents, clocked bool) error {
	b.all = append(b.all, request{})
	r := &b.all[len(b.all)-1]
	of, p, err := parseRequest(kind, p, &r.id)
	if err != nil {
		return err
	}
	if r.id.Exists() && !clocked {
		return fmt.Errorf("%w: a request with an identity before the clock", codec.ErrEntry)
	}
	ops, err := held.Decode(&r.id, p, clocked)
	if err != nil {
		return err
	}
	if r.end = ops; len(b.all) > 1 {
		r.end += b.all[len(b.all)-2].end
	}
	outcome := dedup.Misrouted
	if of == route {
		outcome = once.Judge(&r.id)
	}
	b.outcomes = append(b.outcomes, outcome)
	b.met = append(b.met, once.Met(&r.id, outcome))
	if r.id.IsSource() {
		b.positions = append(b.positions, make([]dedup.PositionAnswer, len(b.all)-len(b.positions))...)
		b.positions[len(b.all)-1] = once.Position(&r.id)
	}
	if outcome != dedup.Applied {
		held.Void(ops)
	}
	return nil
}

// parseRequest parses the route and the identity of a request, and returns its ops undecoded.
func parseRequest(kind byte, p []byte, id *dedup.RequestID) (of codec.Route, ops []byte, err error) {
	of, ops, ok := codec.ParseRoute(p)
	if !ok {
		return of, nil, fmt.Errorf("%w: section kind %d without a route", codec.ErrEntry, kind)
	}
	*id, ops, err = dedup.ParseIdentity(kind, ops)
	return of, ops, err
}

// noteRefused records in the request memory for which requests of the entry the shard refused some
// or all ops. It also corrects the outcomes of repeats of these requests in the same entry.
func (b *requests) noteRefused(once *dedup.Memory, overflows []engine.Overflow) {
	repeats, name := map[string]dedup.Outcome{}, []byte(nil) // by AppendName
	first := 0
	for i := range b.all {
		r, n := &b.all[i], 0
		for ; len(overflows) > 0 && overflows[0].Op < r.end; overflows = overflows[1:] {
			n++
		}
		name = r.id.AppendName(name[:0])
		switch again, noted := repeats[string(name)]; {
		case b.outcomes[i] == dedup.Applied && (n > 0 || noted): // noted: ops of an earlier use of the same key in this entry were refused
			switch n {
			case 0:
				again = dedup.Duplicate
			case r.end - first:
				again = dedup.Refused
			default:
				again = dedup.PartlyRefused
			}
			once.SetRepeat(&r.id, again)
			repeats[string(name)] = again
		case b.outcomes[i] == dedup.Duplicate && noted:
			b.outcomes[i] = again
			once.SetRepeat(&r.id, again) // the judge may have accepted the repeat as new, with a new record
		}
		first = r.end
	}
}
