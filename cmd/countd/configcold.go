package main

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/tiering"
)

// coldCacheMin holds some blocks for each of the readers.
const coldCacheMin = 1 << 20

func coldDefault() tiering.ColdConfig {
	return tiering.ColdConfig{
		After: tiering.ColdAfterDefault, SealAfter: tiering.SealAfterDefault, ScrubEvery: tiering.ScrubEveryDefault, CacheBytes: tiering.ColdCacheBytesDefault,
		Layouts: map[string]tiering.IDLayout{"posts": tiering.LayoutWeibo},
	}
}

// badCold returns the first of the settings of cold rows that cannot be meant, and
// why.
func (c *config) badCold() (name, problem string) {
	for _, d := range []struct {
		name string
		is   time.Duration
	}{
		{"cold-after", c.Cold.After}, {"seal-after", c.Cold.SealAfter}, {"scrub-every", c.Cold.ScrubEvery},
	} {
		if d.is < 0 || d.is > 0 && d.is < time.Second {
			return d.name, fmt.Sprintf("%v is neither 0 nor 1s or more", d.is)
		}
	}
	if c.Cold.CacheBytes < coldCacheMin {
		return "cold-cache", fmt.Sprintf("%d bytes are fewer than %d", c.Cold.CacheBytes, coldCacheMin)
	}
	return "", ""
}

// layoutsFlag maps a keyspace to the layout of its ids. As a flag it accepts NAME=LAYOUT,
// several separated by commas, and adds to its value.
type layoutsFlag map[string]tiering.IDLayout

func (f layoutsFlag) Type() string { return "KEYSPACE=LAYOUT" }

func (f layoutsFlag) String() string {
	pairs := make([]string, 0, len(f))
	for name, layout := range f {
		pairs = append(pairs, name+"="+layout.String())
	}
	sort.Strings(pairs)
	return strings.Join(pairs, ",")
}

func (f layoutsFlag) Set(text string) error {
	if text == "" {
		return nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, layout, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || !catalog.ValidName(name) {
			return fmt.Errorf("want KEYSPACE=LAYOUT, a keyspace being 1 to 63 of a-z 0-9 _ from a letter on")
		}
		l, err := tiering.ParseIDLayout(layout)
		if err != nil {
			return err
		}
		f[name] = l
	}
	return nil
}
