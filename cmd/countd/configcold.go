package main

import (
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/countd/countd/shard"
)

// coldCacheMin holds some blocks for each of the readers.
const coldCacheMin = 1 << 20

func coldDefault() shard.ColdConfig {
	return shard.ColdConfig{
		After: shard.ColdAfterDefault, ScrubEvery: shard.ScrubEveryDefault, CacheBytes: shard.ColdCacheBytesDefault,
		Layouts: map[string]shard.IDLayout{"posts": shard.LayoutWeibo},
	}
}

// badCold returns the first of the settings of cold rows that cannot be meant, and
// why.
func (c *config) badCold() (name, problem string) {
	switch after, every := c.Cold.After, c.Cold.ScrubEvery; {
	case after < 0 || after > 0 && after < time.Second:
		return "cold-after", fmt.Sprintf("%v is neither 0 nor 1s or more", after)
	case every < 0 || every > 0 && every < time.Second:
		return "scrub-every", fmt.Sprintf("%v is neither 0 nor 1s or more", every)
	case c.Cold.CacheBytes < coldCacheMin:
		return "cold-cache", fmt.Sprintf("%d bytes are fewer than %d", c.Cold.CacheBytes, coldCacheMin)
	}
	return "", ""
}

// layoutsFlag maps a keyspace to how its ids carry time. As a flag it takes
// NAME=LAYOUT, also several with commas between, and adds to what it has.
type layoutsFlag map[string]shard.IDLayout

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
		if !ok || !keyspaceName.MatchString(name) {
			return fmt.Errorf("want KEYSPACE=LAYOUT, a keyspace being 1 to 63 of a-z 0-9 _ from a letter on")
		}
		l, err := shard.ParseIDLayout(layout)
		if err != nil {
			return err
		}
		f[name] = l
	}
	return nil
}
