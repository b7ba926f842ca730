package shard

import "bytes"

// walSectorBytes is the least that a disk writes whole or not at all.
const walSectorBytes = 512

// tornBatch tells of the newest segment, whose batches are whole up to start,
// whether what stands behind them is a batch that a crash cut short. That one
// was never acknowledged. Else it returns errDamaged: something that may have
// been acknowledged is not as it was written.
//
// A crash leaves each sector of the batch as it was written or as it was
// before, which is zeros (see openWALStore). So a torn batch
//
//   - lacks a sector: one inside, or all from some sector on;
//   - is the last: the next is begun when this one is synced;
//   - has no frame head that is neither zeros nor what was written.
//
// A batch of which nothing is missing, but whose checksum does not match, was
// changed after it was written. Entries of this program have no run of zeros
// as long as a sector that could be taken for a missing one.
func tornBatch(raw []byte, start int) error {
	end := (len(bytes.TrimRight(raw, "\x00")) + 7) &^ 7
	end = min(end, len(raw))
	if at := laterBatch(raw[:end], start); at > 0 {
		return walDamage("the batch at %d, since a whole one follows at %d", start, at)
	}
	last := end - walFrameHeadBytes
	if last > start && looksLikeCommit(raw[last:end]) && !lacksSector(raw, start, last) {
		return walDamage("the batch at %d, of which nothing is missing", start)
	}
	return walkTorn(raw, start)
}

// laterBatch looks behind start for a batch that is whole, and returns where
// it begins, 0 for none. It comes directly behind another's commit.
func laterBatch(raw []byte, start int) int {
	for at := (start + 7) &^ 7; at+walFrameHeadBytes <= len(raw); at += walFrameHeadBytes {
		if !looksLikeCommit(raw[at : at+walFrameHeadBytes]) {
			continue
		}
		s := walSegment{end: at + walFrameHeadBytes, partial: true}
		if s.readBatch(raw) == nil {
			return at + walFrameHeadBytes
		}
	}
	return 0
}

// looksLikeCommit reports whether b begins with the head of a commit. One whose
// checksum is 0 is taken for something else: many entries have such bytes.
func looksLikeCommit(b []byte) bool {
	return b[0] == walCommitFrame && onlyZeros(b[1:4]) && !onlyZeros(b[4:8])
}

// lacksSector reports whether a sector of raw[from:to], or the part of it in
// there, holds nothing but zeros.
func lacksSector(raw []byte, from, to int) bool {
	for from < to {
		end := min(to, from-from%walSectorBytes+walSectorBytes)
		if onlyZeros(raw[from:end]) {
			return true
		}
		from = end
	}
	return false
}

// walkTorn follows the frames of a torn batch to where they end.
func walkTorn(raw []byte, start int) error {
	at := start
	if start == 0 && !onlyZeros(raw[:walHeadBytes]) {
		at = walHeadBytes
	}
	for at+walFrameHeadBytes <= len(raw) {
		if onlyZeros(raw[at : at+walFrameHeadBytes]) {
			return missingSector(raw, start, at)
		}
		frame, err := readWALFrame(raw, at)
		if err != nil {
			return err
		}
		if frame.kind == walCommitFrame {
			if !lacksSector(raw, start, at) {
				return walDamage("the checksum of the batch at %d does not match", start)
			}
			return nil
		}
		// No payload begins with a zero: an entry's with its index, an index's
		// with the position of a frame.
		payload := at + walFrameHeadBytes
		if payload%walSectorBytes != 0 && payload < len(raw) && raw[payload] == 0 {
			return walDamage("the frame at %d has no content", at)
		}
		at = frame.end
	}
	// The last batch of a segment makes the file longer, a sector at least.
	if len(raw)%walSectorBytes != 0 {
		return walDamage("the batch at %d goes on behind the end, at %d", start, len(raw))
	}
	return nil
}

// missingSector returns nil if the sector of a position, as far as it is of
// the batch, was never written.
func missingSector(raw []byte, start, at int) error {
	from := at - at%walSectorBytes
	if !onlyZeros(raw[max(start, from):min(len(raw), from+walSectorBytes)]) {
		return walDamage("there is no frame at %d", at)
	}
	return nil
}
