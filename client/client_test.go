package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/nodetest"
)

func dial(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Addrs: []string{addr}, Retry: client.Retry{For: client.RetryNever}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestNewRefusesBadConfig(t *testing.T) {
	cases := []struct {
		name    string
		addr    string
		timeout time.Duration
	}{
		{"no host", "http://", time.Second},
		{"other scheme", "redis://127.0.0.1:1", time.Second},
		{"path", "http://127.0.0.1:1/v1", time.Second},
		{"password", "http://a:b@127.0.0.1:1", time.Second},
		{"bad port", "http://127.0.0.1:x", time.Second},
		{"negative timeout", "http://127.0.0.1:1", -1},
		{"long timeout", "http://127.0.0.1:1", time.Minute + 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if _, err := client.New(client.Config{Addrs: []string{c.addr}, Timeout: c.timeout}); err == nil {
				t.Fatal("it passed")
			}
		})
	}
	if c := dial(t, "127.0.0.1:7400/"); c.Addr() != "http://127.0.0.1:7400" {
		t.Fatalf("the address is %s", c.Addr())
	}
}

func TestErrorsOfTheServer(t *testing.T) {
	cases := []struct {
		name   string
		status int
		header string // Retry-After
		body   string
		want   client.Error
		retry  bool
	}{
		{"countd's own", 400, "", `{"error":{"code":"invalid_argument","message":"ops[3].id: no","field":"ops[3].id"}}`,
			client.Error{Status: 400, Code: "invalid_argument", Message: "ops[3].id: no", Field: "ops[3].id"}, false},
		{"busy", 429, "2", `{"error":{"code":"overloaded","message":"m"}}`,
			client.Error{Status: 429, Code: "overloaded", Message: "m", RetryAfter: 2 * time.Second}, true},
		{"in part", 504, "", `{"error":{"code":"outcome_unknown","message":"m"},"applied":["1",2],"unknown":["18446744073709551615"]}`,
			client.Error{Status: 504, Code: "outcome_unknown", Message: "m", Applied: []client.ID{client.Number(1), client.Number(2)}, Unknown: []client.ID{client.Number(math.MaxUint64)}}, true},
		{"a proxy's", 502, "", "<html>\n bad gateway</html>", client.Error{Status: 502, Message: "<html> bad gateway</html>"}, true},
		{"empty", 503, "-1", "", client.Error{Status: 503, Message: "the answer has no text"}, true},
		{"long", 500, "soon", strings.Repeat("x", 1000), client.Error{Status: 500, Message: strings.Repeat("x", 200) + "…"}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.header != "" {
					w.Header().Set("Retry-After", c.header)
				}
				w.WriteHeader(c.status)
				w.Write([]byte(c.body))
			}))
			defer server.Close()
			_, err := dial(t, server.URL).Get(t.Context(), "posts", client.Number(1), client.ReadOptions{})
			var got *client.Error
			if !errors.As(err, &got) || client.Retryable(err) != c.retry {
				t.Fatalf("%v, retryable %v", err, client.Retryable(err))
			}
			same := got.Status == c.want.Status && got.Code == c.want.Code && got.Message == c.want.Message &&
				got.Field == c.want.Field && got.RetryAfter == c.want.RetryAfter &&
				slices.Equal(got.Applied, c.want.Applied) && slices.Equal(got.Unknown, c.want.Unknown)
			if !same || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestOpOfField(t *testing.T) {
	cases := []struct {
		field string
		op    int
		ok    bool
	}{
		{"ops[3].id", 3, true}, {"ops[0]", 0, true}, {"ops[-1].id", 0, false}, {"ops", 0, false}, {"", 0, false},
		{"ops[x]", 0, false}, {"ops[3", 0, false}, {"ids[3]", 0, false},
	}
	for _, c := range cases {
		t.Run(c.field, func(t *testing.T) {
			if op, ok := (&client.Error{Field: c.field}).Op(); ok != c.ok || ok && op != c.op {
				t.Fatalf("got %d, %v", op, ok)
			}
		})
	}
}

func TestAnswersThatAreNoAnswer(t *testing.T) {
	cases := []struct {
		name    string
		serve   http.HandlerFunc
		missing bool // the error must be ErrNoAnswer
	}{
		{"cut off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Write([]byte(`{"id":"1"`))
		}, true},
		{"not JSON", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("hello")) }, false},
		{"fraction for a count", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"id":"1","counts":{"like":1.5}}`)) }, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(c.serve)
			defer server.Close()
			_, err := dial(t, server.URL).Get(t.Context(), "posts", client.Number(1), client.ReadOptions{})
			if err == nil || errors.Is(err, client.ErrNoAnswer) != c.missing {
				t.Fatalf("the error is %v", err)
			}
		})
	}
}

// The error for a wrong member of an answer names the call. Other members are ignored, and an
// absent member is zero.
func TestAnswersWithOneMember(t *testing.T) {
	for answer, want := range map[string][]bool{`{"results":5}`: nil, `{"results":[true],"more":1}`: {true}, `{}`: nil} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(answer)) }))
		defer server.Close()
		in, err := dial(t, server.URL).Members("posts", "like").Check(t.Context(), client.Number(1), []client.ID{client.Number(2)}, client.ReadOptions{})
		if wrong := answer == `{"results":5}`; (err != nil) != wrong || !slices.Equal(in, want) {
			t.Errorf("%s: got %v, %v", answer, in, err)
		} else if wrong && !strings.Contains(err.Error(), "cannot read the answer of POST "+server.URL) {
			t.Errorf("%s: the error is %v", answer, err)
		}
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	server := nodetest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := dial(t, server.URL).Get(ctx, "posts", client.Number(1), client.ReadOptions{})
	if !errors.Is(err, context.Canceled) || client.Retryable(err) {
		t.Fatalf("the error is %v", err)
	}
}

func TestRetry(t *testing.T) {
	busy := &client.Error{Status: 429}
	cases := []struct {
		name     string
		errs     []error // errors of the first tries; later tries succeed
		patience time.Duration
		tries    int
		want     error
	}{
		{"at once", nil, time.Minute, 1, nil},
		{"after two", []error{busy, client.ErrNoAnswer}, time.Minute, 3, nil},
		{"not worth it", []error{&client.Error{Status: 400}}, time.Minute, 1, &client.Error{Status: 400}},
		{"no patience", []error{busy, busy}, client.RetryNever, 1, busy},
		{"last try at the end", []error{&client.Error{Status: 503, RetryAfter: time.Hour}}, 20 * time.Millisecond, 2, nil},
		{"cancelled", []error{context.Canceled}, time.Minute, 1, context.Canceled},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tries, waits := 0, 0
			b := client.Retry{For: c.patience, OnWait: func(error, time.Duration) { waits++ }}
			err := b.Do(t.Context(), func() error {
				if tries++; tries > len(c.errs) {
					return nil
				}
				return c.errs[tries-1]
			})
			if tries != c.tries || waits != c.tries-1 || (err == nil) != (c.want == nil) || err != nil && err.Error() != c.want.Error() {
				t.Fatalf("%d tries, %d waits, %v; want %d tries, %v", tries, waits, err, c.tries, c.want)
			}
		})
	}
	t.Run("context ends the wait", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := client.Retry{For: time.Hour, OnWait: func(error, time.Duration) { cancel() }}
		err := b.Do(ctx, func() error { return &client.Error{Status: 503, RetryAfter: time.Hour} })
		if err == nil || !client.Retryable(err) {
			t.Fatalf("the error is %v, want the last one of the call", err)
		}
	})
}

func TestAppendOpsIsJSON(t *testing.T) {
	ops := []client.Op{
		{ID: client.Number(math.MaxUint64), Cells: client.Counts{{Column: "like", Value: math.MinInt64}, {Column: "view", Value: 0}}},
		{ID: client.Number(0), Cells: client.Counts{{Column: "like", Value: 1}}},
	}
	const want = `{"want":"none","ops":[{"id":"18446744073709551615","set":{"like":-9223372036854775808,"view":0}},{"id":"0","set":{"like":1}}]}`
	if got := string(client.AppendOps(nil, "set", ops, false)); got != want || !json.Valid([]byte(got)) {
		t.Fatalf("got %s", got)
	}
}

// The body is valid JSON even if a name has arbitrary bytes. The server then refuses the name.
func TestAppendOpsOfAnyName(t *testing.T) {
	for _, name := range []string{"", "like", `a"b`, `a\b`, "a\x00b", "a\x7fb\a", "ü", "\xff", "\u2028"} {
		text := client.AppendOps(nil, "add", []client.Op{{ID: client.Number(1), Cells: client.Counts{{Column: name, Value: 1}}}}, true)
		var body struct {
			Ops []struct{ Add map[string]int64 }
		}
		if err := json.Unmarshal(text, &body); err != nil {
			t.Errorf("%q: %s is not JSON: %v", name, text, err)
		} else if want := strings.ToValidUTF8(name, "\ufffd"); body.Ops[0].Add[want] != 1 {
			t.Errorf("%q: sent as %s", name, text)
		}
	}
}

func TestIDsInJSON(t *testing.T) {
	text := func(text string) client.ID {
		id, err := client.ParseID(text)
		if _, number := id.Number(); err != nil || number || id.String() != text {
			t.Errorf("ParseID(%q) = %v, %v", text, id, err)
		}
		return id
	}
	cases := []struct {
		text string
		want client.ID
		ok   bool
	}{
		{`"18446744073709551615"`, client.Number(math.MaxUint64), true},
		{`18446744073709551615`, client.Number(math.MaxUint64), true},
		{`"0"`, client.Number(0), true}, {`""`, client.ID{}, true},
		{`"18446744073709551616"`, text("18446744073709551616"), true}, {`"007"`, text("007"), true}, {`"+7"`, text("+7"), true},
		{`"a\u00e9\"/"`, text("a\u00e9\"/"), true},
		{`00`, client.ID{}, false}, {`-1`, client.ID{}, false}, {`1e3`, client.ID{}, false}, {`1.0`, client.ID{}, false}, {`true`, client.ID{}, false}, {`18446744073709551616`, client.ID{}, false},
		{"\"" + strings.Repeat("x", client.IDBytesMax+1) + "\"", client.ID{}, false}, {"\"\xff\"", client.ID{}, false},
	}
	for _, c := range cases {
		t.Run(c.text, func(t *testing.T) {
			var id client.ID
			err := json.Unmarshal([]byte(c.text), &id)
			if (err == nil) != c.ok || c.ok && id != c.want {
				t.Fatalf("got %s, %v", id, err)
			}
		})
	}
}

func FuzzCounts(f *testing.F) {
	for _, seed := range []string{`{}`, `{"like":1,"view":-2}`, ` { "a" : 9223372036854775807 , "b":0 } `, `{"a":1,}`, `{"a":1.5}`,
		`{"a\u0041":1}`, `{"a":}`, `{"a":1`, `[1]`, `null`, `{"a":1e3}`, `{"a":01}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var counts client.Counts
		if counts.UnmarshalJSON([]byte(text)) != nil {
			return
		}
		if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
			return // encoding/json has refused or repaired the text
		}
		var want map[string]int64
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("%q was read, though it is no object of integers: %v", text, err)
		}
		got := map[string]int64{}
		for _, c := range counts {
			got[c.Column] = c.Value
		}
		if len(got) != len(want) {
			t.Fatalf("%q has columns %v, want %v", text, got, want)
		}
		for column, value := range want {
			if got[column] != value {
				t.Fatalf("%q: %q is %d, want %d", text, column, got[column], value)
			}
		}
	})
}
