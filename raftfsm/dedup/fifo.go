package dedup

import (
	"iter"
	"slices"
)

// fifoBlockLen is the number of records that a fifo allocates at once: a few kilobytes.
const fifoBlockLen = 128

// fifo is a queue of numbered records, in blocks that never move. Another goroutine may read a
// captured fifo while records are pushed to the original and popped from it. A record must not
// change after a capture. A record must have no pointers: they would keep memory in use after the
// pop of the record, until its block is freed.
type fifo[T any] struct {
	// blocks[0] has the record with number first. The last block has the record with number end-1.
	// A number divided by fifoBlockLen gives the block, and the remainder is the index in the
	// block.
	blocks     []*[fifoBlockLen]T
	first, end uint64
}

func (f *fifo[T]) len() int { return int(f.end - f.first) }

// at returns the record with the given number, which must be at least first and below end.
func (f *fifo[T]) at(number uint64) *T {
	return &f.blocks[number/fifoBlockLen-f.first/fifoBlockLen][number%fifoBlockLen]
}

// push appends a record and returns its number.
func (f *fifo[T]) push(v T) uint64 {
	if f.end%fifoBlockLen == 0 {
		f.blocks = append(f.blocks, new([fifoBlockLen]T))
	}
	f.end++
	*f.at(f.end - 1) = v
	return f.end - 1
}

// pop drops the oldest record.
func (f *fifo[T]) pop() {
	if f.first++; f.first%fifoBlockLen == 0 {
		f.blocks[0] = nil
		f.blocks = f.blocks[1:]
	}
}

// capture returns the queue as it is now. Any goroutine may read it.
func (f *fifo[T]) capture() fifo[T] {
	return fifo[T]{slices.Clone(f.blocks), f.first, f.end}
}

// split returns a queue with the same records, to which other records can be pushed.
func (f *fifo[T]) split() fifo[T] {
	part := f.capture()
	if f.end%fifoBlockLen != 0 {
		last := *f.blocks[len(f.blocks)-1]
		part.blocks[len(f.blocks)-1] = &last
	}
	return part
}

func (f *fifo[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for n := f.first; n < f.end; n++ {
			if !yield(f.at(n)) {
				return
			}
		}
	}
}
