package main

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/countd/countd/raftfsm/catalog"
)

// autoGrow says, by keyspace, whether it grows by itself. The keyspace "" stands for all others.
type autoGrow map[string]bool

func (autoGrow) Type() string { return "string" }

func (f autoGrow) String() string {
	word := map[bool]string{true: "on", false: "off"}
	words := []string{word[f[""]]}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if name != "" {
			words = append(words, name+"="+word[f[name]])
		}
	}
	return strings.Join(words, ",")
}

func (f autoGrow) Set(text string) error {
	for item := range strings.SplitSeq(text, ",") {
		name, value, of := strings.Cut(strings.TrimSpace(item), "=")
		if !of {
			name, value = "", name
		}
		grows, known := map[string]bool{"on": true, "true": true, "off": false, "false": false}[value] // templates of YAML turn on into true
		if of && !catalog.ValidName(name) || !known {
			return errors.New("want on, off, KEYSPACE=on or KEYSPACE=off, a keyspace being 1 to 63 of a-z 0-9 _ from a letter on")
		}
		f[name] = grows
	}
	return nil
}

// fixed reports whether a keyspace must not grow by itself.
func (f autoGrow) fixed(keyspace string) bool {
	grows, set := f[keyspace]
	if !set {
		grows = f[""]
	}
	return !grows
}
