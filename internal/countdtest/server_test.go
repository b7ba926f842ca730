package countdtest

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Answers beside changes: each is of one moment.
func TestAnswersBesideChanges(t *testing.T) {
	s := New(t)
	call := func(method, path, body string) string {
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return ""
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return ""
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %d, %v", method, path, answer.StatusCode, err)
		}
		return string(bytes.TrimSpace(text))
	}
	var changes sync.WaitGroup
	defer changes.Wait()
	changes.Go(func() {
		for i := range 100 {
			call(http.MethodPost, "/v1/keyspaces/posts/columns", `{"columns":[{"name":"c`+string(rune('a'+i%26))+`","floor":0}]}`)
		}
	})
	for range 100 {
		if text := call(http.MethodGet, "/v1/keyspaces", ""); !strings.Contains(text, `"name":"posts"`) {
			t.Errorf("answered %s", text)
		}
	}
}
