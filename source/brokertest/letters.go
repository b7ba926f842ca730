package brokertest

import (
	"errors"
	"strings"
	"testing"

	"github.com/countd/countd/source"
)

// MissingLetters fails unless a broker tells a queue of dead letters that is missing from the one that
// q has.
func MissingLetters(t *testing.T, q *Queue, missing string) {
	t.Helper()
	for _, more := range []string{"", "dead-letters: " + missing + "\n"} {
		cfg, err := source.ParseConfig([]byte(q.Config + more))
		if err != nil {
			t.Fatal(err)
		}
		access, err := q.Secrets.Access(cfg)
		if err != nil {
			t.Fatal(err)
		}
		broker, err := q.Open(cfg, access)
		if err != nil {
			t.Fatal(err)
		}
		defer broker.Close()
		var stalled *source.StalledError
		err = broker.(source.LetterQueue).CheckLetters(t.Context())
		if is := errors.As(err, &stalled) && strings.Contains(stalled.Reason, missing); is != (more != "") || !is && err != nil {
			t.Errorf("dead letters %s: %v", cfg.DeadLetters, err)
		}
	}
}
