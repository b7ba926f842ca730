package source

import (
	"fmt"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/countd/countd/internal/strictjson"
)

// read reads a configuration from the root of a YAML document.
func (c *Config) read(root *yaml.Node) error {
	return members(root, "", map[string]func(string, *yaml.Node) error{
		"name":          text(&c.Name),
		"type":          text(&c.Type),
		"brokers":       c.readBrokers,
		"topic":         text(&c.Topic),
		"url":           text(&c.URL),
		"stream":        text(&c.Stream),
		"addr":          text(&c.Addr),
		"key":           text(&c.Key),
		"field":         text(&c.Field),
		"dsn":           text(&c.DSN),
		"slot":          text(&c.Slot),
		"publication":   text(&c.Publication),
		"prefix":        text(&c.Prefix),
		"username":      text(&c.Username),
		"password-file": text(&c.PasswordFile),
		"mechanism":     text(&c.Mechanism),
		"tls":           c.readTLS,
		"dead-letters":  text(&c.DeadLetters),
		"start":         c.readStart,
		"format":        text(&c.Format),
		"map":           c.readMap,
		"on-error":      text(&c.OnError),
		"batch":         c.readBatch,
	})
}

// members reads the fields of a YAML mapping. It refuses fields that are unknown or given twice.
func members(n *yaml.Node, path string, known map[string]func(string, *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return bad(path, "not an object of fields")
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i].Value
		field := shown(key)
		if path != "" {
			field = path + "." + field
		}
		read, ok := known[key]
		switch {
		case !ok:
			return bad(field, "no such field")
		case seen[key]:
			return bad(field, strictjson.GivenTwice)
		}
		seen[key] = true
		if err := read(field, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// text returns a function that stores a YAML scalar in *to.
func text(to *string) func(string, *yaml.Node) error {
	return func(field string, n *yaml.Node) error {
		switch {
		case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
			return bad(field, "not a text")
		case n.Value == "":
			return bad(field, "empty")
		case len(n.Value) > textBytesMax:
			return bad(field, "over %d bytes", textBytesMax)
		}
		*to = n.Value
		return nil
	}
}

func (c *Config) readBrokers(field string, n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > brokersMax {
		return bad(field, "not a list of 1 to %d addresses", brokersMax)
	}
	for i, item := range n.Content {
		var addr string
		if err := text(&addr)(fmt.Sprintf("%s[%d]", field, i), item); err != nil {
			return err
		}
		c.Brokers = append(c.Brokers, addr)
	}
	return nil
}

func (c *Config) readStart(field string, n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && (n.Value == "earliest" || n.Value == "latest") {
		c.Start.Latest = n.Value == "latest"
		return nil
	}
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 || len(n.Content)/2 > startsMax {
		return bad(field, "neither earliest, latest nor an object of 1 to %d positions by partition", startsMax)
	}
	c.Start.At, c.Start.texts = map[uint32]Position{}, map[uint32]string{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		field := field + "." + shown(key)
		partition, err := strconv.ParseUint(key, 10, 32)
		if err != nil || strconv.FormatUint(partition, 10) != key {
			return bad(field, "not a partition: a number below 2^32")
		}
		if _, twice := c.Start.texts[uint32(partition)]; twice {
			return bad(field, strictjson.GivenTwice)
		}
		c.Start.texts[uint32(partition)] = value.Value
	}
	return nil
}

func (c *Config) readMap(field string, n *yaml.Node) error {
	c.Map = &Mapping{}
	return members(n, field, map[string]func(string, *yaml.Node) error{
		"if":       text(&c.Map.If),
		"unless":   text(&c.Map.Unless),
		"keyspace": text(&c.Map.Keyspace),
		"id":       text(&c.Map.ID),
		"user":     text(&c.Map.User),
		"column":   text(&c.Map.Column),
		"add":      text(&c.Map.Add),
		"set":      text(&c.Map.Set),
		"member":   text(&c.Map.Member),
	})
}

func (c *Config) readTLS(field string, n *yaml.Node) error {
	c.TLS = &TLS{}
	return members(n, field, map[string]func(string, *yaml.Node) error{
		"ca-file":   text(&c.TLS.CAFile),
		"cert-file": text(&c.TLS.CertFile),
		"key-file":  text(&c.TLS.KeyFile),
	})
}

func (c *Config) readBatch(field string, n *yaml.Node) error {
	return members(n, field, map[string]func(string, *yaml.Node) error{
		"messages": func(field string, n *yaml.Node) error {
			v, err := strconv.Atoi(n.Value)
			if err != nil || v < 1 || v > batchMessagesMax {
				return bad(field, "not a number from 1 to %d", batchMessagesMax)
			}
			c.Batch.Messages = v
			return nil
		},
		"linger": func(field string, n *yaml.Node) error {
			d, err := time.ParseDuration(n.Value)
			if err != nil || d < 0 || d > lingerMax {
				return bad(field, "not a duration from 0s to %s", lingerMax)
			}
			c.Batch.Linger = Duration(d)
			return nil
		},
	})
}
