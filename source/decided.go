package source

import "slices"

// refusedMax bounds the refused messages that a runner remembers while a shard does not answer. It
// allows one batch.
const refusedMax = batchMessagesMax

// decided remembers which messages a runner has accepted or refused, until all shards have passed
// them. A batch may fail after some shards have applied it, and an operator may create or drop a
// column before the next try. The decision must not change then; otherwise a message could both
// count and be a dead letter. A runner on another node does not know the decision, and decides
// again. This runner also decides again if a shard is restored after all shards have passed the
// message: see sources/SINK.md.
type decided struct {
	// handed has the positions of the messages that the Sink received, as ascending spans with gaps
	// between them. It has several spans while the runner reads messages a second time for a late
	// or restored shard.
	handed []span
	// refused has the refused messages. The other messages in handed are accepted.
	refused map[Position]*refusal
}

type span struct{ from, to Position }

type refusal struct {
	reason  string
	written bool // the dead letter is acknowledged, or the source writes no dead letters
}

// hand records that the Sink receives the messages from one position up to another.
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

// has reports whether the Sink has received the message at a position.
func (d *decided) has(p Position) bool {
	return slices.ContainsFunc(d.handed, func(s span) bool { return !p.Less(s.from) && p.Less(s.to) })
}

// forget drops messages that all shards have passed.
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
