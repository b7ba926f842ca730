package brokertest

import (
	"errors"
	"strings"
	"testing"

	"github.com/countd/countd/source"
)

// MissingLetters tests that a broker returns an error if the configured dead-letter queue does not
// exist. missing is the name of such a queue. With q's own configuration, the broker returns no
// error.
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
