package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine"
)

// batch is the ops of a whole entry, decoded into memory that is used again.
type batch struct {
	ops      []engine.Op
	cells    []engine.Cell
	ends     []int // cells of op i end here; set until the cells no longer move
	requests []request
	outcomes []Outcome // by request
}

// request is one of an entry's requests, until the next entry is decoded.
type request struct {
	id  RequestID // its name is the entry's
	end int       // its ops end here
}

// decode fills the batch with all ops of a counters entry, in order, and has
// the memory of requests judge each. Ops that are not to be applied become
// ones without cells, which change nothing and answer their row.
func (b *batch) decode(sections []byte, once *once) error {
	b.ops, b.cells, b.ends = b.ops[:0], b.cells[:0], b.ends[:0]
	b.requests, b.outcomes = b.requests[:0], b.outcomes[:0]
	ticked := false
	for len(sections) > 0 {
		kind, payload, rest, err := nextSection(sections)
		if err != nil {
			return err
		}
		if kind == sectionClock {
			now, limits, err := parseClock(payload)
			if err != nil {
				return err
			}
			once.tick(now, limits)
			ticked = true
		} else if err := b.request(kind, payload, once, ticked); err != nil {
			return err
		}
		sections = rest
	}
	start := 0
	for i, end := range b.ends {
		b.ops[i].Cells = b.cells[start:end]
		start = end
	}
	return nil
}

// request decodes one request and has it judged.
func (b *batch) request(kind byte, p []byte, once *once, ticked bool) error {
	id, p, err := parseIdentity(kind, p)
	if err != nil {
		return err
	}
	if id.Exists() && !ticked {
		return fmt.Errorf("%w: a request with an identity before the clock", errEntry)
	}
	first, cells := len(b.ops), len(b.cells)
	if err := b.requestOps(p); err != nil {
		return err
	}
	outcome := once.judge(&id)
	b.requests = append(b.requests, request{id, len(b.ops)})
	b.outcomes = append(b.outcomes, outcome)
	if outcome == Applied {
		return nil
	}
	b.cells = b.cells[:cells]
	for i := first; i < len(b.ops); i++ {
		b.ops[i].Kind, b.ends[i] = engine.OpAdd, cells
	}
	return nil
}

// noteRefused has the memory know which requests of the entry had ops refused,
// each or some, and tells their repeats inside the entry.
func (b *batch) noteRefused(once *once, overflows []engine.Overflow) {
	again, name := map[string]Outcome{}, []byte(nil) // by identity as an entry has it
	first := 0
	for i := range b.requests {
		r, n := &b.requests[i], 0
		for ; len(overflows) > 0 && overflows[0].Op < r.end; overflows = overflows[1:] {
			n++
		}
		name = r.id.appendTo(append(name[:0], r.id.section()))
		switch told, refused := again[string(name)]; {
		case b.outcomes[i] == Applied && n > 0:
			told = PartlyRefused
			if n == r.end-first {
				told = Refused
			}
			once.refuse(&r.id, told)
			again[string(name)] = told
		case b.outcomes[i] == Duplicate && refused:
			b.outcomes[i] = told
		}
		first = r.end
	}
}

func (b *batch) requestOps(p []byte) error {
	if len(p) < 4 {
		return fmt.Errorf("%w: request of %d bytes", errEntry, len(p))
	}
	n := int(binary.LittleEndian.Uint32(p))
	p = p[4:]
	if n > len(p)/opSizeMin {
		return fmt.Errorf("%w: %d ops in %d bytes", errEntry, n, len(p))
	}
	for range n {
		var err error
		if p, err = b.op(p); err != nil {
			return err
		}
	}
	if len(p) > 0 {
		return fmt.Errorf("%w: %d bytes after the last op", errEntry, len(p))
	}
	return nil
}

func (b *batch) op(p []byte) ([]byte, error) {
	if len(p) < opSizeMin {
		return nil, fmt.Errorf("%w: op of %d bytes", errEntry, len(p))
	}
	op := engine.Op{Kind: engine.OpKind(p[0] & 3), ID: binary.LittleEndian.Uint64(p[1:])}
	cells := int(p[0]>>2) + 1
	p = p[opSizeMin:]
	switch {
	case op.Kind == engine.OpDelete && cells == 1:
		cells = 0
	case op.Kind != engine.OpAdd && op.Kind != engine.OpSet:
		return nil, fmt.Errorf("%w: op kind %d with %d cells", errEntry, op.Kind, cells)
	}
	for range cells {
		if len(p) < 2 || p[0] >= engine.ColumnsMax {
			return nil, fmt.Errorf("%w: cell % x", errEntry, p[:min(len(p), 2)])
		}
		v, n := binary.Varint(p[1:])
		if n <= 0 {
			return nil, fmt.Errorf("%w: value of column %d", errEntry, p[0])
		}
		b.cells = append(b.cells, engine.Cell{Column: p[0], Value: v})
		p = p[1+n:]
	}
	b.ops = append(b.ops, op)
	b.ends = append(b.ends, len(b.cells))
	return p, nil
}
