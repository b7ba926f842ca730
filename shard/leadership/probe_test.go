package leadership

import (
	"context"
	"slices"
	"testing"

	"github.com/countd/countd/internal/wire"
)

func FuzzProbes(f *testing.F) {
	f.Add(appendProbes(nil, []termProbe{{1, 7, 0, 3}, {64, 1 << 40, 1 << 60, 2}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := wire.Reader{Rest: b}
		if asked, err := parseProbes(&r); err == nil {
			s := wire.Reader{Rest: appendProbes(nil, asked)}
			if again, err := parseProbes(&s); err != nil || !slices.Equal(again, asked) {
				t.Fatalf("%+v became %+v, %v", asked, again, err)
			}
		}
	})
}

// Each call names both replicas and announces the maximal size of its answer.
func TestSendProbes(t *testing.T) {
	want := []termProbe{{group: 1, term: 7}, {group: 2, asker: 1}, {group: 3, asked: 2}}
	p := NewProver(ProverConfig{Key: "a", Call: func(_ context.Context, node, method string, request []byte, answerBytes int) ([]byte, error) {
		r := wire.Reader{Rest: request}
		asker := string(r.Bytes())
		asked, err := parseProbes(&r)
		if err != nil || node != "b" || asker != "a" || method != methodProbe || !slices.Equal(asked, want) {
			t.Errorf("%s of %s asks %s for %+v, %v", method, asker, node, asked, err)
		}
		if answerBytes < 2*len(asked) {
			t.Errorf("an answer of %d bytes to %d probes", answerBytes, len(asked))
		}
		return slices.Repeat([]byte{7, 9}, len(asked)), nil
	}})
	answers, err := p.sendProbes("b")(t.Context(), want)
	if told := slices.Repeat([]termAnswer{{7, 9}}, len(want)); err != nil || !slices.Equal(answers, told) {
		t.Errorf("answers %+v, %v", answers, err)
	}
}
