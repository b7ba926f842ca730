package source

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/countd/countd/internal/wire"
)

// ParseConfig parses YAML, or JSON, which is YAML, and sets the defaults.
func ParseConfig(text []byte) (*Config, error) { return ParseNamed("", text) }

// ParseNamed does the same as ParseConfig, for a source with the given name. The text may omit the
// name, but must not contain a different one. If name is empty, the text must contain the name.
func ParseNamed(name string, text []byte) (*Config, error) {
	if len(text) > configBytesMax {
		return nil, bad("", "over %d bytes", configBytesMax)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, bad("", "empty: name and type are needed")
	} else if err != nil {
		return nil, bad("", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, bad("", "more than one document")
	}
	c := &Config{
		Format:  FormatJSON,
		OnError: OnErrorDeadLetter,
		Batch:   Bounds{batchMessagesDefault, Duration(lingerDefault)},
	}
	if err := c.read(doc.Content[0]); err != nil {
		return nil, err
	}
	if name != "" && c.Name != "" && c.Name != name {
		return nil, bad("name", "not %s, as the call has it", shown(name))
	}
	c.Name = cmp.Or(c.Name, name)
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.Start.ids = c.Type == TypeRedis
	for _, partition := range slices.Sorted(maps.Keys(c.Start.texts)) {
		var err error
		if c.Start.At[partition], err = c.Position(c.Start.texts[partition]); err != nil {
			return nil, bad(fmt.Sprintf("start.%d", partition), "%v", err)
		}
	}
	return c, nil
}

func (c *Config) validate() error {
	switch {
	case c.Name == "":
		return bad("name", "missing")
	case !wire.IsSlug(c.Name, nameBytesMax):
		return bad("name", "not 1 to 64 of a-z, 0-9, - and _, a letter or digit first")
	case c.Type == "":
		return bad("type", "missing")
	case c.OnError != OnErrorDeadLetter && c.OnError != OnErrorStop && c.OnError != OnErrorSkip:
		return bad("on-error", "none of %s, %s and %s", OnErrorDeadLetter, OnErrorStop, OnErrorSkip)
	case c.Format != FormatJSON && c.Format != FormatDebezium:
		return bad("format", "neither %s nor %s", FormatJSON, FormatDebezium)
	case c.Format == FormatDebezium && c.Map == nil:
		return bad("map", "missing: format %s needs it", FormatDebezium)
	}
	if err := c.validateType(); err != nil {
		return err
	}
	if err := c.validateAccess(); err != nil {
		return err
	}
	if c.Map != nil {
		_, err := compileMap(c.Map, c.Format)
		return err
	}
	return nil
}

// validateType checks the fields that depend on the type, and sets their defaults.
func (c *Config) validateType() error {
	fields := []struct {
		name  string
		set   bool
		types string // types that have the field; a ! after the type means that the field is mandatory
	}{
		{"brokers", len(c.Brokers) > 0, "kafka!"},
		{"topic", c.Topic != "", "kafka!"},
		{"url", c.URL != "", "nats!"},
		{"stream", c.Stream != "", "nats!"},
		{"addr", c.Addr != "", "redis-stream!"},
		{"key", c.Key != "", "redis-stream!"},
		{"field", c.Field != "", "redis-stream"},
		{"dsn", c.DSN != "", "postgres!"},
		{"slot", c.Slot != "", "postgres!"},
		{"publication", c.Publication != "", "postgres!"},
		{"prefix", c.Prefix != "", "postgres"},
		{"mechanism", c.Mechanism != "", "kafka"},
	}
	if !slices.Contains([]string{TypeKafka, TypeNATS, TypeRedis, TypePostgres}, c.Type) {
		return bad("type", "none of kafka, nats, redis-stream and postgres")
	}
	for _, f := range fields {
		of := strings.TrimSuffix(f.types, "!")
		switch {
		case f.set && of != c.Type:
			return bad(f.name, "not a field of type %s", c.Type)
		case !f.set && f.types == c.Type+"!":
			return bad(f.name, "missing: type %s needs it", c.Type)
		}
	}
	letters := ""
	switch c.Type {
	case TypeKafka:
		letters = c.Topic + ".dead"
	case TypeNATS:
		letters = c.Stream + ".dead"
	case TypeRedis:
		letters = c.Key + ".dead"
		if c.Field == "" {
			c.Field = "value"
		}
	case TypePostgres:
		letters = "countd_dead_letters"
		if err := c.validatePostgres(); err != nil {
			return err
		}
	}
	if c.DeadLetters == "" {
		c.DeadLetters = letters
	}
	if c.DeadLetters == c.Topic || c.DeadLetters == c.Key {
		return bad("dead-letters", "the source would read them again")
	}
	if c.Type == TypePostgres && !tableForm.MatchString(c.DeadLetters) {
		return bad("dead-letters", "not the name of a table in lower case")
	}
	return nil
}

func (c *Config) validatePostgres() error {
	switch {
	case !slotForm.MatchString(c.Slot):
		return bad("slot", "not 1 to 63 of a-z, 0-9 and _")
	case !slotForm.MatchString(c.Publication):
		return bad("publication", "not 1 to 63 of a-z, 0-9 and _")
	case c.Prefix == "" && c.Format != FormatDebezium:
		return bad("prefix", "missing: it selects the messages of pg_logical_emit_message; changes of tables have format debezium")
	case c.Prefix != "" && c.Format == FormatDebezium:
		return bad("prefix", "not with format debezium, which reads changes of tables")
	}
	return nil
}

// nameBytesMax bounds the name of a source, which becomes a part of paths, metric labels and
// consumer groups' names.
const nameBytesMax = 64

var slotForm = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// tableForm matches the allowed names of the dead-letter table, which need no quotes in SQL.
var tableForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$`)
