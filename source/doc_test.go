package source

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDoc: each configuration of docs/SOURCES.md is valid, and decodes the messages that follow it
// there.
func TestDoc(t *testing.T) {
	doc, err := os.ReadFile("../docs/SOURCES.md")
	if err != nil {
		t.Fatal(err)
	}
	var cfg *Config
	count := map[string]int{}
	for _, block := range regexp.MustCompile("(?s)```(yaml|json)\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		kind, text := block[1], strings.TrimSpace(block[2])
		count[kind]++
		if kind == "yaml" {
			if cfg, err = ParseConfig([]byte(text)); err != nil {
				t.Errorf("%s\n%v", text, err)
			}
			continue
		}
		d := NewDecoder(cfg)
		if err := d.Decode(&Message{Value: []byte(text)}); err != nil || len(d.Ops) == 0 {
			t.Errorf("%s: %d ops, %v", text, len(d.Ops), err)
		}
	}
	if count["yaml"] < 8 || count["json"] < 4 {
		t.Errorf("examples %v", count)
	}
}
