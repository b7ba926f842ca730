package api

import (
	"os"
	"strings"
	"testing"
)

// TestUnreadDocIsReplayed sends each request of docs/UNREAD.md to a node, in order, and compares
// the answers. The doc omits the fields that the answer of every write has.
func TestUnreadDocIsReplayed(t *testing.T) {
	l := startReal(t)
	doc, err := os.ReadFile("../docs/UNREAD.md")
	if err != nil {
		t.Fatal(err)
	}
	lines, replayed := strings.Split(string(doc), "\n"), 0
	for i, line := range lines {
		request, indented := strings.CutPrefix(line, "    ")
		method, rest, _ := strings.Cut(request, " ")
		if !indented || !strings.Contains(" GET POST PUT DELETE ", " "+method+" ") {
			continue
		}
		path, body, _ := strings.Cut(rest, " ")
		want, ok := strings.CutPrefix(lines[i+1], "    ")
		if !ok {
			t.Fatalf("line %d: a request without an answer", i+1)
		}
		if method != "GET" {
			want = strings.TrimSuffix(want, "}") + written
		}
		l.ok(want, method, path, body)
		replayed++
	}
	if replayed < 40 {
		t.Errorf("%d requests were replayed", replayed)
	}
}
