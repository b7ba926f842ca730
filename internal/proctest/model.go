package proctest

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// verb is the kind of an operation of a history.
type verb byte

const (
	add verb = iota
	set
	get
)

// asked is an operation on one count.
type asked struct {
	verb verb
	n    int64 // number that is added or set
}

// told is the answer to an operation. known is false if there was no answer.
type told struct {
	known bool
	n     int64 // the count right after the operation
}

// countModel is the model of one count, which begins at zero.
var countModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		count, in, out := state.(int64), input.(asked), output.(told)
		switch in.verb {
		case add:
			count += in.n
		case set:
			count = in.n
		}
		return !out.known || out.n == count, count
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(asked), output.(told)
		text := [...]string{add: fmt.Sprintf("add %d", in.n), set: fmt.Sprintf("set %d", in.n), get: "get"}[in.verb]
		if !out.known {
			return text
		}
		return fmt.Sprintf("%s → %d", text, out.n)
	},
}
