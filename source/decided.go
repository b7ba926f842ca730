package source

import "slices"

// decided is what a runner remembers of the messages that it handed to the Sink, until every shard has
// passed them. A try of a batch may fail after some shards have applied it, and a column may be made or
// dropped before the next try. The message stays taken or refused all the same: otherwise it could be both
// counted and a dead letter.
type decided struct {
	// handed covers the positions of these messages. Its spans ascend and do not touch. It has more than one
	// while the runner reads again below what it has decided, for a shard that was late or restored.
	handed []span
	// refused has the messages that are refused. All others in handed are taken.
	refused map[Position]*refusal
}

type span struct{ from, to Position }

type refusal struct {
	reason  string
	written bool // its dead letter is written, or it needs none
}

// hand adds the messages of a batch.
func (d *decided) hand(from, to Position) {
	kept := d.handed[:0]
	for _, s := range d.handed {
		if s.to.Less(from) || to.Less(s.from) {
			kept = append(kept, s)
			continue
		}
		from, to = lower(from, s.from), higher(to, s.to)
	}
	d.handed = append(kept, span{from, to})
	slices.SortFunc(d.handed, func(a, b span) int { return a.from.Compare(b.from) })
}

// has reports whether the message at a position was handed over.
func (d *decided) has(p Position) bool {
	return slices.ContainsFunc(d.handed, func(s span) bool { return !p.Less(s.from) && p.Less(s.to) })
}

// forget drops what every shard has passed.
func (d *decided) forget(below Position) {
	d.handed = slices.DeleteFunc(d.handed, func(s span) bool { return !below.Less(s.to) })
	if len(d.handed) > 0 {
		d.handed[0].from = higher(d.handed[0].from, below)
	}
	for p := range d.refused {
		if p.Less(below) {
			delete(d.refused, p)
		}
	}
}

func lower(a, b Position) Position {
	if b.Less(a) {
		return b
	}
	return a
}

func higher(a, b Position) Position {
	if a.Less(b) {
		return b
	}
	return a
}
