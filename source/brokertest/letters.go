package brokertest

import (
	"errors"
	"strings"
	"testing"

	"github.com/countd/countd/source"
)

// MissingLetters tests that a broker returns an error if the dead-letter queue named missing is
// configured, and no error for q's own configuration.
func MissingLetters(t *testing.T, q *Queue, missing string) {
	t.Helper()
	for _, more := range []string{"", "dead-letters: " + missing + "\n"} {
		cfg, broker := q.open(t, q.Config+more)
		defer broker.Close()
		var stalled *source.StalledError
		err := broker.(source.LetterQueue).CheckLetters(t.Context())
		if is := errors.As(err, &stalled) && strings.Contains(stalled.Reason, missing); is != (more != "") || !is && err != nil {
			t.Errorf("dead letters %s: %v", cfg.DeadLetters, err)
		}
	}
}
