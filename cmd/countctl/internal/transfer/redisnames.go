package transfer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/redisimport"
)

// namesShown bounds the names that a message lists.
const namesShown = 5

// notLeftOut returns the names without those that --map leaves out.
func notLeftOut(left redisimport.Names, mapping []string) redisimport.Names {
	left = maps.Clone(left)
	for _, pair := range mapping {
		if name, column, _ := strings.Cut(pair, "="); column == "" {
			delete(left, name)
		}
	}
	return left
}

// tellNames lists the most frequent names, with how often each was seen.
func tellNames(names redisimport.Names) string {
	order := slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(names[b], names[a]), strings.Compare(a, b))
	})
	var parts []string
	for _, name := range order[:min(len(order), namesShown)] {
		parts = append(parts, fmt.Sprintf("%q (%s)", name, cli.Grouped(names[name])))
	}
	if more := len(order) - namesShown; more > 0 {
		parts = append(parts, "and "+cli.Counted(more, "more name"))
	}
	return strings.Join(parts, ", ")
}

// missingOf describes each pattern and each name of --map that matched no value: its counts
// were most likely not copied.
func missingOf(state redisimport.State, patterns []*redisimport.Pattern, mapping []string) []string {
	var missing []string
	for n, p := range patterns {
		if n >= len(state.Given) || state.Given[n] == 0 {
			missing = append(missing, fmt.Sprintf("no value was copied by --pattern %q: no %s of that form has a count", p.Text, p.Types()))
		}
	}
	for _, pair := range mapping {
		if name, column, _ := strings.Cut(pair, "="); column != "" && state.Came[name] == 0 {
			missing = append(missing, fmt.Sprintf("no value was copied by --map %s: no key or field is called %q", pair, name))
		}
	}
	return missing
}

// someOf lists the first of a number of keys.
func someOf(keys []string, all int64) string {
	var parts []string
	for _, key := range keys {
		parts = append(parts, strconv.Quote(key))
	}
	if more := all - int64(len(keys)); more > 0 {
		parts = append(parts, "and "+cli.Grouped(more)+" more")
	}
	return strings.Join(parts, ", ")
}
