package prover

import (
	"context"
	"slices"
	"testing"

	"github.com/countd/countd/shard/wire"
)

func FuzzProbes(f *testing.F) {
	f.Add(appendProbes(nil, []termProbe{{group: 1, term: 7}, {group: 64, term: 1 << 40}}, false))
	f.Add(appendProbes(nil, []termProbe{{1, 7, 0, 3}, {64, 1 << 40, 1 << 60, 2}}, true))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, numbered := range []bool{false, true} {
			r := wire.Reader{Rest: b}
			if asked, err := parseProbes(&r, numbered); err == nil {
				s := wire.Reader{Rest: appendProbes(nil, asked, numbered)}
				if again, err := parseProbes(&s, numbered); err != nil || !slices.Equal(again, asked) {
					t.Fatalf("%+v became %+v, %v", asked, again, err)
				}
			}
		}
	})
}

// Probes between replicas of number 0 use the short method. Each call announces a bound of its
// answer.
func TestSendProbes(t *testing.T) {
	for _, c := range []struct {
		name   string
		asked  []termProbe
		method string
	}{
		{"without numbers", []termProbe{{group: 1, term: 7}}, methodStanding},
		{"of a numbered replica", []termProbe{{group: 1}, {group: 2, asker: 1}}, methodProbe},
		{"for a numbered replica", []termProbe{{group: 1, asked: 2}}, methodProbe},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(Config{Key: "a", Call: func(_ context.Context, node, method string, request []byte, answerBytes int) ([]byte, error) {
				r := wire.Reader{Rest: request}
				asker := string(r.Bytes())
				asked, err := parseProbes(&r, method == methodProbe)
				if err != nil || node != "b" || asker != "a" || method != c.method || !slices.Equal(asked, c.asked) {
					t.Errorf("%s of %s asks %s for %+v, %v", method, asker, node, asked, err)
				}
				if answerBytes < 2*len(asked) {
					t.Errorf("an answer of %d bytes to %d probes", answerBytes, len(asked))
				}
				return slices.Repeat([]byte{7, 9}, len(asked)), nil
			}})
			answers, err := p.sendProbes("b")(t.Context(), c.asked)
			if want := slices.Repeat([]termAnswer{{7, 9}}, len(c.asked)); err != nil || !slices.Equal(answers, want) {
				t.Errorf("answers %+v, %v", answers, err)
			}
		})
	}
}
