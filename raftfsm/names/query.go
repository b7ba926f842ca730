package names

import (
	"encoding/binary"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
)

// The texts and numbers of a query are in the query itself, and its read has no ids: it has one Part with
// the key 0.

// query is what the queries have in common.
type query struct{ raftfsm.Defaults }

// Split implements raftfsm.Query.
func (query) Split(read *raftfsm.Read) { read.Parts[0].Keys = append(read.Parts[0].Keys, 0) }

// NumbersQuery reads the numbers of texts, at most raftfsm.ReadKeysMax.
type NumbersQuery struct {
	query
	Texts   []string
	Numbers []uint64 // the answer: for each text its number, 0 for a text without one
}

// Number implements raftfsm.Query.
func (*NumbersQuery) Number() byte { return 0 }

// Limits implements raftfsm.Query.
func (q *NumbersQuery) Limits(int) raftfsm.Limits {
	bytes := 0
	for _, text := range q.Texts {
		bytes += 1 + len(text)
	}
	answer := (1 + len(q.Texts)) * binary.MaxVarintLen64
	return raftfsm.Limits{Keys: 1, Bytes: bytes + answer, Answer: answer}
}

// AppendTo implements raftfsm.Query.
func (q *NumbersQuery) AppendTo(dst []byte, _ *raftfsm.Part) []byte { return appendTexts(dst, q.Texts) }

// AppendAnswer implements raftfsm.Query.
func (q *NumbersQuery) AppendAnswer(dst []byte, _ *raftfsm.Part) ([]byte, error) {
	return appendNumbers(dst, q.Numbers), nil
}

// ParseAnswer implements raftfsm.Query.
func (q *NumbersQuery) ParseAnswer(r *wire.Reader, _ *raftfsm.Part) {
	q.Numbers = parseNumbers(q.Numbers[:0], r)
	if len(q.Numbers) != len(q.Texts) {
		r.Fail("other numbers than texts")
	}
}

// TextsQuery reads the texts of numbers, at most raftfsm.ReadKeysMax.
type TextsQuery struct {
	query
	Numbers []uint64
	Texts   []string // the answer: for each number its text, "" for a number without one
	Next    uint64   // the answer: numbers from Next on have no text yet; only a restore gives a text to a lower number that has none
}

// Number implements raftfsm.Query.
func (*TextsQuery) Number() byte { return 1 }

// Limits implements raftfsm.Query.
func (q *TextsQuery) Limits(int) raftfsm.Limits {
	n := len(q.Numbers)
	return raftfsm.Limits{Keys: 1, Bytes: n * textBytesHint, Answer: (n + 2) * (1 + BytesMax)}
}

// textBytesHint estimates the bytes of a number and its text.
const textBytesHint = 48

// AppendTo implements raftfsm.Query.
func (q *TextsQuery) AppendTo(dst []byte, _ *raftfsm.Part) []byte {
	return appendNumbers(dst, q.Numbers)
}

// AppendAnswer implements raftfsm.Query.
func (q *TextsQuery) AppendAnswer(dst []byte, _ *raftfsm.Part) ([]byte, error) {
	return appendTexts(binary.AppendUvarint(dst, q.Next), q.Texts), nil
}

// ParseAnswer implements raftfsm.Query.
func (q *TextsQuery) ParseAnswer(r *wire.Reader, _ *raftfsm.Part) {
	q.Next = r.Uint()
	q.Texts = parseTexts(q.Texts[:0], r)
	if len(q.Texts) != len(q.Numbers) {
		r.Fail("other texts than numbers")
	}
}

// AgeQuery reads which numbers were given at or before a time.
type AgeQuery struct {
	query
	Until int64  // the time, in Unix milliseconds
	Young uint64 // the answer: all lower numbers were given at or before Until; 1 if none is known to be
}

// Number implements raftfsm.Query.
func (*AgeQuery) Number() byte { return 2 }

// Limits implements raftfsm.Query.
func (*AgeQuery) Limits(int) raftfsm.Limits {
	return raftfsm.Limits{Keys: 1, Bytes: 2 * binary.MaxVarintLen64, Answer: binary.MaxVarintLen64}
}

// AppendTo implements raftfsm.Query.
func (q *AgeQuery) AppendTo(dst []byte, _ *raftfsm.Part) []byte {
	return binary.AppendUvarint(dst, uint64(q.Until))
}

// AppendAnswer implements raftfsm.Query.
func (q *AgeQuery) AppendAnswer(dst []byte, _ *raftfsm.Part) ([]byte, error) {
	return binary.AppendUvarint(dst, q.Young), nil
}

// ParseAnswer implements raftfsm.Query.
func (q *AgeQuery) ParseAnswer(r *wire.Reader, _ *raftfsm.Part) { q.Young = r.UintTo(NumberMax + 1) }

func parseQuery(number byte, r *wire.Reader) raftfsm.Query {
	switch number {
	case 0:
		return &NumbersQuery{Texts: parseTexts(nil, r)}
	case 1:
		return &TextsQuery{Numbers: parseNumbers(nil, r)}
	case 2:
		return &AgeQuery{Until: int64(r.UintTo(timeMax))}
	}
	return raftfsm.NoQuery(number, r)
}

// appendTexts appends the number of texts, and for each its length and its bytes.
func appendTexts(dst []byte, texts []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(texts)))
	for _, text := range texts {
		dst = append(append(dst, byte(len(text))), text...)
	}
	return dst
}

func parseTexts(texts []string, r *wire.Reader) []string {
	for range r.CountTo(1, raftfsm.ReadKeysMax) {
		text := r.Take(uint64(r.Byte()))
		if len(text) > BytesMax {
			r.Fail("a text that is too long")
		}
		texts = append(texts, string(text))
	}
	return texts
}

func appendNumbers(dst []byte, numbers []uint64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(numbers)))
	for _, number := range numbers {
		dst = binary.AppendUvarint(dst, number)
	}
	return dst
}

func parseNumbers(numbers []uint64, r *wire.Reader) []uint64 {
	for range r.CountTo(1, raftfsm.ReadKeysMax) {
		numbers = append(numbers, r.Uint())
	}
	return numbers
}
