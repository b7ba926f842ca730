package source

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/countd/countd/internal/strictjson"
)

// The members of an envelope that the decoder reads.
const (
	envPayload = iota
	envOp
	envBefore
	envAfter
	envSlots
)

// envelope has the paths of a Debezium envelope's members. A message with a schema wraps these
// members in the member payload.
var envelope = &pathNode{slot: -1, children: []*pathNode{
	{key: "payload", slot: envPayload},
	{key: "op", slot: envOp},
	{key: "before", slot: envBefore},
	{key: "after", slot: envAfter},
}}

// debezium reads a change of a row. c (create) adds the mapped value of the row, d (delete)
// subtracts it, and u (update) subtracts the old value and adds the new one. r, a row of a
// snapshot, counts nothing, because a reconciliation counts existing rows. If the mapping has a
// member, the member joins for c and leaves for d. For u, the old member leaves and the new one
// joins. An empty message is a tombstone and counts nothing.
func (d *Decoder) debezium(value []byte) error {
	if len(value) == 0 || string(value) == "null" {
		return nil
	}
	raw, err := d.envelope(value)
	if err != nil {
		return err
	}
	if payload := raw[envPayload]; payload != nil && raw[envOp] == nil {
		if string(payload) == "null" {
			return nil
		}
		if raw, err = d.envelope(payload); err != nil {
			return err
		}
	}
	switch op := bytes.Trim(raw[envOp], `"`); string(op) {
	case "":
		return errors.New("op: missing")
	case "c":
		return d.change(nil, raw[envAfter])
	case "d":
		return d.change(raw[envBefore], nil)
	case "u":
		if isNull(raw[envBefore]) {
			return errNoBefore
		}
		return d.change(raw[envBefore], raw[envAfter])
	case "r":
		return nil
	case "t":
		return Stalled("the table was truncated: reconcile the counts, then seek past position")
	default:
		return fmt.Errorf("op: %q is none of c, u, d, r and t", shown(string(op)))
	}
}

var errNoBefore = errors.New("before: missing: the table needs REPLICA IDENTITY FULL")

func isNull(raw []byte) bool { return raw == nil || string(raw) == "null" }

// envelope returns the members of an envelope.
func (d *Decoder) envelope(text []byte) (raw [envSlots][]byte, err error) {
	c := &d.cursor
	c.Reset(text)
	if c.Peek() != '{' {
		c.Fail("envelope", strictjson.NotObject)
	}
	envelope.walk(c, raw[:])
	c.End()
	return raw, c.Err
}

// change appends ops that subtract the old row and add the new row. One of them may be nil. Each
// row counts separately: it counts nothing if its conditions do not hold, or if a part of its op is
// null.
func (d *Decoder) change(before, after []byte) error {
	switch {
	case before == nil && isNull(after):
		return errors.New("after: missing")
	case after == nil && isNull(before):
		return errNoBefore
	}
	old, taken, err := d.side(before)
	if err != nil {
		return fmt.Errorf("before: %w (a table needs REPLICA IDENTITY FULL if the map reads more than its key)", err)
	}
	if taken && old.value == math.MinInt64 {
		return fmt.Errorf("before: %d cannot be taken back", old.value)
	}
	if after != nil && isNull(after) {
		return errors.New("after: missing")
	}
	now, counted, err := d.side(after)
	if err != nil {
		return fmt.Errorf("after: %w", err)
	}
	if d.mapping.member { // the old row's member leaves, the new row's member joins
		old.value, now.value = 1, 1
		if taken && counted && old == now {
			return nil
		}
		old.value = 0
	}
	if taken && counted && !d.mapping.member && old.id == now.id && old.idText == now.idText && old.keyspace == now.keyspace && old.column == now.column {
		difference := now.value - old.value
		if (difference > 0) != (now.value > old.value) {
			return errors.New("the difference does not fit 64 bits")
		}
		if difference != 0 {
			d.addRow(now, difference)
		}
		return nil
	}
	if taken {
		d.addRow(old, -old.value)
	}
	if counted {
		d.addRow(now, now.value)
	}
	return nil
}

// side parses the old or the new row of a change, and reports whether the row counts.
func (d *Decoder) side(text []byte) (r row, counts bool, err error) {
	if text == nil {
		return r, false, nil
	}
	if err = d.find(text); err != nil {
		return r, false, err
	}
	if counts, err = d.counts(); err != nil || !counts || d.hasNull() {
		return r, false, err
	}
	r, err = d.row()
	return r, err == nil, err
}
