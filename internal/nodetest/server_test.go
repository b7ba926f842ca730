package nodetest

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// post sends a write and returns its answer. status is 0 if the connection was cut.
func post(t *testing.T, s *Server, body string) (status int, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/counters/posts/incr", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Countd-Producer", "p")
	request.Header.Set("Countd-Seq", "1")
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Each fault produces the expected answer, and lets the node apply the expected part of the
// request.
func TestFaults(t *testing.T) {
	const body = `{"ops":[{"id":"1","add":{"like":9007199254740993}},{"id":"2","add":{"like":1}}],"want":"none"}`
	for name, c := range map[string]struct {
		fault  *Fault
		status int
		answer string   // a part of the answer
		likes  [2]int64 // counts of rows 1 and 2
	}{
		"none":            {nil, 200, `"applied":2`, [2]int64{9007199254740993, 1}},
		"refused":         {&Fault{Status: 429, Code: "overloaded"}, 429, `"overloaded"`, [2]int64{}},
		"applied":         {&Fault{Status: 504, Code: "outcome_unknown", After: true}, 504, `"outcome_unknown"`, [2]int64{9007199254740993, 1}},
		"applied in part": {&Fault{Status: 504, Code: "outcome_unknown", After: true, Shards: []int{1}}, 504, `"applied":["1"],"error"`, [2]int64{9007199254740993, 0}},
		"cut":             {&Fault{Hang: true}, 0, "", [2]int64{}},
		"cut, applied":    {&Fault{Hang: true, After: true}, 0, "", [2]int64{9007199254740993, 1}},
		"another answer":  {&Fault{Status: 200, Body: "mine"}, 200, "mine", [2]int64{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(t)
			s.SetFail(func(*http.Request, []byte) *Fault { return c.fault })
			if status, answer := post(t, s, body); status != c.status || !strings.Contains(answer, c.answer) {
				t.Errorf("%d %s", status, answer)
			}
			if likes := [2]int64{s.Row(1)[2], s.Row(2)[2]}; likes != c.likes {
				t.Errorf("likes are %v, want %v", likes, c.likes)
			}
			s.SetFail(func(*http.Request, []byte) *Fault { return nil })
			if status, answer := post(t, s, body); status != 200 || s.Row(1)[2] != 9007199254740993 || s.Row(2)[2] != 1 {
				t.Errorf("again: %d %s", status, answer)
			}
		})
	}
}

// A producer that was forgotten cannot repeat its number.
func TestForgetProducers(t *testing.T) {
	s := New(t, OneProducer)
	for _, want := range []int{200, 410} {
		if status, answer := post(t, s, `{"ops":[{"id":"1","add":{"like":1}}]}`); status != want {
			t.Errorf("%d %s, want %d", status, answer, want)
		}
		s.ForgetProducers()
	}
	s.Put(7, 1, 2, 3, 4)
	if got := s.Row(7); !slices.Equal(got, []int64{1, 2, 3, 4}) || s.Rows() != 2 {
		t.Errorf("row 7 is %v, of %d rows", got, s.Rows())
	}
	if s.Renew(); s.Rows() != 0 {
		t.Errorf("a new node has %d rows", s.Rows())
	}
}
