package csvimport

import "sync"

// Position is a position in a file: every record that starts on Line or before is handled.
// Rows of them were acknowledged by the server and Rejected of them were rejected.
type Position struct {
	Line     int64 `json:"line"`
	Rows     int64 `json:"rows"`
	Rejected int64 `json:"rejected,omitempty"`
}

// watermark tracks up to which line all rows are acknowledged, while lanes complete theirs
// in any order.
type watermark struct {
	mu struct {
		sync.Mutex
		read Position // after the last record read
		// open holds, for each lane and each of its unacknowledged batches, oldest first,
		// the position before the batch's first row. The oldest of all is the watermark; if
		// there is none, the watermark is read.
		open [][]Position
	}
}

func newWatermark(lanes int, from Position) *watermark {
	w := &watermark{}
	w.mu.read = from
	w.mu.open = make([][]Position, lanes)
	return w
}

// taken records that the row of a line was passed to a lane, into a new batch or the present
// one.
func (w *watermark) taken(lane int, newBatch bool, line int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if newBatch {
		w.mu.open[lane] = append(w.mu.open[lane], w.mu.read)
	}
	w.mu.read.Line = line
	w.mu.read.Rows++
}

// passed records that the record of a line was rejected.
func (w *watermark) passed(line int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.read.Line = line
	w.mu.read.Rejected++
}

// acked records that the lane's oldest batch was acknowledged.
func (w *watermark) acked(lane int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.open[lane] = w.mu.open[lane][1:]
}

// position returns the watermark. It never falls.
func (w *watermark) position() Position {
	w.mu.Lock()
	defer w.mu.Unlock()
	lowest := w.mu.read
	for _, batches := range w.mu.open {
		if len(batches) > 0 && batches[0].Line < lowest.Line {
			lowest = batches[0]
		}
	}
	return lowest
}
