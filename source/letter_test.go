package source

import (
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/source/sink/sinktest"
)

// lettersOf returns the keys of the dead letters that one message causes in a queue with the given
// identity.
func lettersOf(t *testing.T, identity, message string, want int) (keys []string) {
	t.Helper()
	q, c := newFakes(2, nil)
	q.identity = identity
	q.add(message, like(1, 1))
	_, stop := startRunner(testConfig(t, ""), q, c)
	defer stop()
	eventually(t, "all is applied", func() bool { return caughtUp(q, c) })
	q.set(func() {
		for _, l := range q.letters {
			keys = append(keys, l.Key())
		}
	})
	if len(keys) != want {
		t.Errorf("%d letters of %s, want %d", len(keys), message, want)
	}
	return keys
}

// TestKeysOfLetters: a compacted broker, which keeps one letter for each key, keeps all letters.
// Equal ops of a message have different keys. So do messages at the same position of a queue that
// was created again, or of one that lost messages.
func TestKeysOfLetters(t *testing.T) {
	full := like(sinktest.FullRow, 1)
	keys := slices.Concat(
		lettersOf(t, "one", "["+like(1, 1)+","+full+","+full+"]", 2),
		lettersOf(t, "one", "poison", 1),
		lettersOf(t, "one", "another poison", 1),
		lettersOf(t, "two", "poison", 1),
	)
	slices.Sort(keys)
	if n := len(slices.Compact(slices.Clone(keys))); n != len(keys) {
		t.Errorf("keys %q", keys)
	}
	if again := lettersOf(t, "two", "poison", 1); !slices.Contains(keys, again[0]) {
		t.Errorf("a letter that is written again has another key: %q, not of %q", again, keys)
	}
	// An index of PostgreSQL accepts rows of about 2,700 bytes, so a key must be shorter.
	long := Letter{Source: strings.Repeat("s", 63), Partition: 1<<32 - 1, Position: Position{Hi: 1<<64 - 1, Lo: 1<<64 - 1}, Op: strings.Repeat("o", 5000)}
	if n := len(long.Key()); n >= 200 {
		t.Errorf("a key of %d bytes", n)
	}
}
