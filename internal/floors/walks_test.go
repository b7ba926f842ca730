package floors

import (
	"slices"
	"strings"
	"testing"
)

// walksMin is the smallest number of walks that docs/ARCHITECTURE.md may have.
const walksMin = 6

// TestWalks checks the walks of requests in docs/ARCHITECTURE.md. A walk is a list of paths. Each
// path but the first begins at a package of an earlier path. A → B requires that A imports B. A ⇢ B
// is a call through an interface: B must import A, or an earlier package of the path must import
// both A and B. No path visits a package twice.
func TestWalks(t *testing.T) {
	_, list, _ := strings.Cut(read(t, architecture), "\n## Walks\n")
	list, _, _ = strings.Cut(list, "\n## ")
	edges, err := Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	imports := map[[2]string]bool{}
	for _, e := range edges {
		imports[[2]string{e.From, e.To}] = imports[[2]string{e.From, e.To}] || !e.Test
	}
	walks := 0
	for _, item := range strings.Split("\n"+list, "\n- ")[1:] {
		walks++
		name, walk, _ := strings.Cut(item, ": ")
		passed := map[string]bool{}
		for i, path := range strings.Split(walk, ";") {
			if problem := pathProblem(strings.Fields(path), imports, passed, i == 0); problem != "" {
				t.Errorf("docs/ARCHITECTURE.md: the walk of %s: %s", name, problem)
			}
		}
	}
	if walks < walksMin {
		t.Errorf("docs/ARCHITECTURE.md has %d walks, fewer than %d", walks, walksMin)
	}
}

// pathProblem returns what is wrong with a path, or "". It adds the packages of the path to passed.
func pathProblem(words []string, imports map[[2]string]bool, passed map[string]bool, first bool) string {
	if len(words)%2 == 0 {
		return "not packages with arrows between them: " + strings.Join(words, " ")
	}
	if !first && !passed[words[0]] {
		return "it did not pass " + words[0]
	}
	passed[words[0]] = true
	for i := 1; i < len(words); i += 2 {
		from, to := words[i-1], words[i+1]
		joined := imports[[2]string{to, from}] || slices.ContainsFunc(words[:i-1], func(p string) bool {
			return imports[[2]string{p, from}] && imports[[2]string{p, to}]
		})
		switch {
		case words[i] != "→" && words[i] != "⇢":
			return words[i] + " is no arrow"
		case words[i] == "→" && !imports[[2]string{from, to}]:
			return from + " does not import " + to
		case words[i] == "⇢" && !joined:
			return "nothing joins " + from + " and " + to
		case slices.Contains(words[:i], to):
			return "it comes back to " + to
		}
		passed[to] = true
	}
	return ""
}

func TestBadWalksAreFound(t *testing.T) {
	imports := map[[2]string]bool{{"a", "b"}: true, {"b", "c"}: true, {"b", "a"}: true, {"a", "d"}: true}
	for path, want := range map[string]string{
		"a → b → c": "",
		"c ⇢ b":     "",
		"b → a → b": "it comes back to b",
		"a → c":     "a does not import c",
		"b ⇢ c":     "nothing joins b and c",
		"a → b ⇢ d": "",
		"a → b c":   "not packages with arrows between them: a → b c",
		"a to b":    "to is no arrow",
	} {
		if got := pathProblem(strings.Fields(path), imports, map[string]bool{}, true); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := pathProblem([]string{"b", "→", "c"}, imports, map[string]bool{"a": true}, false); got != "it did not pass b" {
		t.Errorf("a second path from elsewhere: %q", got)
	}
}
