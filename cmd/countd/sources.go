package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

const (
	envPrefix = "COUNTD_"
	// configFlag is the flag that names the configuration file. It is no setting, so a file cannot
	// name another file.
	configFlag = "config"
	// fileBytesMax bounds a configuration file. A usual one has some hundred bytes.
	fileBytesMax = 64 << 10
)

// resolve sets the settings that the command line does not set. A variable wins over the file, and
// the file over the default. lookup is os.LookupEnv. Every error is a configError.
func (c *config) resolve(lookup func(string) (string, bool)) error {
	if c.file == "" {
		c.file, _ = lookup(envName(configFlag))
	}
	inFile, err := c.readFile()
	if err != nil {
		return err
	}
	c.flags.VisitAll(func(setting *pflag.Flag) {
		if err == nil {
			err = c.resolveOne(setting, inFile, lookup)
		}
	})
	if err != nil {
		return err
	}
	return c.validate()
}

func (c *config) resolveOne(setting *pflag.Flag, inFile map[string]fileValue, lookup func(string) (string, bool)) error {
	name := setting.Name
	if setting.Changed {
		c.sources[name] = "flag --" + name
		return nil
	}
	text, source := "", ""
	if v, ok := inFile[name]; ok {
		text, source = v.text, fmt.Sprintf("file %s:%d", c.file, v.line)
	}
	// Ignore an empty variable, because shells and compose files may set a variable to the empty
	// string.
	if v, _ := lookup(envName(name)); v != "" {
		text, source = v, "env "+envName(name)
	}
	if source == "" {
		c.sources[name] = "default"
		return nil
	}
	c.sources[name] = source
	if err := setting.Value.Set(text); err != nil {
		return c.bad(name, fmt.Sprintf("%q: %v", text, err))
	}
	return nil
}

func envName(setting string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

// strayEnv returns the variables of environ that look like settings but are not. They cause a
// warning, not an error, because for a service named countd an orchestrator sets variables such as
// COUNTD_SERVICE_HOST.
func (c *config) strayEnv(environ []string) []string {
	known := map[string]bool{envName(configFlag): true}
	c.flags.VisitAll(func(f *pflag.Flag) { known[envName(f.Name)] = true })
	var stray []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, envPrefix) && !known[name] {
			stray = append(stray, name)
		}
	}
	sort.Strings(stray)
	return stray
}

// fileValue is the value of one key in the format of its flag.
type fileValue struct {
	text string
	line int
}

// readFile returns the settings in c.file, or nil if c.file is "".
func (c *config) readFile() (map[string]fileValue, error) {
	if c.file == "" {
		return nil, nil
	}
	f, err := os.Open(c.file)
	if err != nil {
		return nil, &configError{fmt.Sprintf("cannot read configuration: %v", err)}
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, fileBytesMax+1))
	if err != nil {
		return nil, &configError{fmt.Sprintf("cannot read configuration: %v", err)}
	}
	if len(raw) > fileBytesMax {
		return nil, &configError{fmt.Sprintf("%s: over %d bytes", c.file, fileBytesMax)}
	}
	return c.parseFile(raw)
}

// parseFile parses one YAML mapping of settings. It refuses unknown and repeated keys with
// their line.
func (c *config) parseFile(raw []byte) (map[string]fileValue, error) {
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // an empty file sets nothing
	} else if err != nil {
		return nil, &configError{fmt.Sprintf("%s: %v", c.file, err)}
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, &configError{c.file + ": want one YAML document"}
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, c.fileError(root.Line, "want a mapping of settings")
	}
	values := map[string]fileValue{}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if c.flags.Lookup(key.Value) == nil {
			return nil, c.fileError(key.Line, fmt.Sprintf("unknown key %q", key.Value))
		}
		if before, ok := values[key.Value]; ok {
			return nil, c.fileError(key.Line, fmt.Sprintf("key %q is in line %d already", key.Value, before.line))
		}
		text, err := flagText(key.Value, value)
		if err != nil {
			return nil, c.fileError(value.Line, fmt.Sprintf("%s: %v", key.Value, err))
		}
		values[key.Value] = fileValue{text: text, line: key.Line}
	}
	return values, nil
}

func (c *config) fileError(line int, problem string) error {
	return &configError{fmt.Sprintf("%s:%d: %s", c.file, line, problem)}
}

// flagText converts a YAML value to the format of the setting's flag. A scalar stays as it is. The
// mapping of shards becomes a list of NAME=N, separated by commas.
func flagText(setting string, value *yaml.Node) (string, error) {
	if setting != "shards" {
		if value.Kind == yaml.SequenceNode && (setting == "join" || setting == "id-layout" || setting == "ids" || setting == "auto-grow") {
			return "", fmt.Errorf("want one plain value, several with commas between: %s: \"a,b\"", setting)
		}
		if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
			return "", errors.New("want one plain value")
		}
		return value.Value, nil
	}
	var counts map[string]int
	if value.Kind != yaml.MappingNode {
		return "", errors.New("want a mapping of keyspaces to numbers")
	}
	if err := value.Decode(&counts); err != nil {
		return "", errors.New("want a mapping of keyspaces to numbers, each once")
	}
	return keyspacesFlag[int]{of: counts}.String(), nil
}

// printEffective writes the settings in the format of --config, with each value's source as
// a comment.
func (c *config) printEffective(w io.Writer) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	c.flags.VisitAll(func(f *pflag.Flag) {
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: f.Name}
		value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: f.Value.String()}
		if f.Name == "shards" {
			value = shardsNode(c.Shards)
		}
		value.LineComment = c.sources[f.Name]
		root.Content = append(root.Content, key, value)
	})
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return fmt.Errorf("cannot print configuration: %w", err)
	}
	return enc.Close()
}

func shardsNode(counts map[string]int) *yaml.Node {
	node := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		node.Content = append(node.Content,
			&yaml.Node{Kind: yaml.ScalarNode, Value: name},
			&yaml.Node{Kind: yaml.ScalarNode, Value: strconv.Itoa(counts[name])})
	}
	return node
}
