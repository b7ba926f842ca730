package resp

import "github.com/countd/countd/internal/strictjson"

// A cursor of SCAN is the lowest id of the next page, so the server keeps no state. If an element
// exists during the whole scan, exactly one page has it. Every scan ends. Clients keep cursors in
// doubles and in signed integers, so a cursor has 53 bits:
//
//	id                  for an id up to ScanExact
//	ScanExact + id/ScanBlock   for a higher id
//
// A page that begins or ends above ScanExact does so at the boundary of a block of ScanBlock ids.
// So a page has at most COUNT rows of a keyspace, or the rows of one block.
const (
	ScanExact     = 1 << 52
	ScanBlock     = 1 << 12
	scanCursorMax = ScanExact + (1<<64-1)/ScanBlock
)

// ScanCursor returns the cursor of a page that begins at an id.
func ScanCursor(id uint64) uint64 {
	if id > ScanExact {
		return ScanExact + id/ScanBlock
	}
	return id
}

// ParseScanCursor returns the id at which the page of a cursor begins.
func ParseScanCursor(text []byte) (id uint64, err error) {
	cursor, ok := strictjson.ParseUint64(text)
	switch {
	case !ok || cursor > scanCursorMax:
		return 0, ErrInvalidCursor
	case cursor > ScanExact:
		return (cursor - ScanExact) * ScanBlock, nil
	}
	return cursor, nil
}
