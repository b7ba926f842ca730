package members

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// ErrDamaged means that sets cannot be read from disk, or are not the result of the log's entries.
var ErrDamaged = errors.New("members are damaged on disk")

// damaged turns an error of a read from Pebble into an ErrDamaged.
func damaged(err error) error {
	if err == nil || errors.Is(err, ErrDamaged) || errors.Is(err, scarce.ErrClosed) {
		return err
	}
	return fmt.Errorf("%w: %s", ErrDamaged, err.Error()) // the error's other formats include a stack
}

// reader reads keys, either the present ones or those of a Pebble snapshot.
type reader interface {
	Get(key []byte) ([]byte, io.Closer, error)
	NewIter(o *pebble.IterOptions) (*pebble.Iterator, error)
}

// each calls fn with the keys that have a prefix, until fn returns false or an error.
func each(from reader, prefix []byte, fn func(key, value []byte) (bool, error)) error {
	return eachFrom(from, prefix, scarce.PrefixEnd(prefix), fn)
}

// eachFrom calls fn with the keys in [first, end), until fn returns false or an error.
func eachFrom(from reader, first, end []byte, fn func(key, value []byte) (bool, error)) error {
	it, err := from.NewIter(&pebble.IterOptions{LowerBound: first, UpperBound: end})
	if err != nil {
		return damaged(err)
	}
	more := true
	for it.First(); more && it.Valid() && err == nil; it.Next() {
		var value []byte
		if value, err = it.ValueAndErr(); err == nil {
			more, err = fn(it.Key(), value)
		}
	}
	return damaged(errors.Join(err, it.Error(), it.Close()))
}
