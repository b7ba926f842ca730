package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// seenProperties has the properties of schemas that have occurred in examples.
type seenProperties struct {
	names map[*openapi3.Schema]string // names of the components
	seen  map[*openapi3.Schema]map[string]bool
}

func newSeen(doc *openapi3.T) *seenProperties {
	s := &seenProperties{map[*openapi3.Schema]string{}, map[*openapi3.Schema]map[string]bool{}}
	for name, ref := range doc.Components.Schemas {
		s.names[ref.Value] = name
	}
	return s
}

// see records the properties of a value as seen, and returns the problems: properties that the schema lacks.
func (s *seenProperties) see(of *openapi3.MediaType, v any) (problems []string) {
	if of == nil || of.Schema == nil {
		return nil
	}
	s.walk(of.Schema.Value, "", v, &problems)
	return problems
}

func (s *seenProperties) walk(schema *openapi3.Schema, at string, v any, problems *[]string) {
	if name, ok := s.names[schema]; ok {
		at = name
	}
	for _, ref := range schema.OneOf {
		if ref.Value.VisitJSON(v) == nil {
			s.walk(ref.Value, at, v, problems)
		}
	}
	switch v := v.(type) {
	case []any:
		if schema.Items != nil {
			for _, item := range v {
				s.walk(schema.Items.Value, at+"[]", item, problems)
			}
		}
	case map[string]any:
		for name, value := range v {
			extra := schema.AdditionalProperties
			if property := schema.Properties[name]; property != nil {
				if s.seen[schema] == nil {
					s.seen[schema] = map[string]bool{}
				}
				s.seen[schema][name] = true
				s.walk(property.Value, at+"."+name, value, problems)
			} else if extra.Schema != nil {
				s.walk(extra.Schema.Value, at+".*", value, problems)
			} else if (extra.Has == nil || !*extra.Has) && schema.OneOf == nil {
				*problems = append(*problems, fmt.Sprintf("%s has no property %s", cmp.Or(strings.TrimPrefix(at, "."), "the schema"), name))
			}
		}
	}
}

// lacks returns the properties that occurred in no value. It covers a schema and the schemas in it.
func (s *seenProperties) lacks(schema *openapi3.Schema, at string, been map[*openapi3.Schema]bool) (all []string) {
	if been[schema] {
		return nil
	}
	been[schema] = true
	if name, ok := s.names[schema]; ok {
		at = name
	}
	for _, ref := range schema.OneOf {
		all = append(all, s.lacks(ref.Value, at, been)...)
	}
	if schema.Items != nil {
		all = append(all, s.lacks(schema.Items.Value, at+"[]", been)...)
	}
	if extra := schema.AdditionalProperties.Schema; extra != nil {
		all = append(all, s.lacks(extra.Value, at+".*", been)...)
	}
	for name, ref := range schema.Properties {
		if !s.seen[schema][name] {
			all = append(all, at+"."+name)
		}
		all = append(all, s.lacks(ref.Value, at+"."+name, been)...)
	}
	return all
}

// propertyProblems returns the properties that no example has, and the properties of examples that
// no schema has.
func (c *contract) propertyProblems(t *testing.T) (all []string) {
	t.Helper()
	s := newSeen(c.doc)
	for _, e := range c.examples(t) {
		for _, problem := range s.see(contentOf(e.operation, e.status), plainJSON(t, e.Value)) {
			all = append(all, fmt.Sprintf("%v: %s", e, problem))
		}
		if e.status >= 300 || e.operation.RequestBody == nil || e.takesStream() {
			continue
		}
		var body any
		if text := e.requestBody(t); text != "" {
			if err := json.Unmarshal([]byte(text), &body); err != nil {
				t.Fatalf("%v: %v", e, err)
			}
		}
		for _, problem := range s.see(requestOf(e.operation), body) {
			all = append(all, fmt.Sprintf("%v: the request: %s", e, problem))
		}
	}
	been := map[*openapi3.Schema]bool{}
	c.operations(func(method, path string, _ *openapi3.PathItem, o *openapi3.Operation) {
		contents := []*openapi3.MediaType{requestOf(o)}
		for _, response := range o.Responses.Map() {
			contents = append(contents, oneOf(response.Value.Content))
		}
		for _, content := range contents {
			if content != nil && content.Schema != nil {
				for _, property := range s.lacks(content.Schema.Value, method+" "+path, been) {
					all = append(all, "no example has "+property)
				}
			}
		}
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// plainJSON returns v as encoding/json decodes it.
func plainJSON(t *testing.T, v any) (plain any) {
	t.Helper()
	if err := json.Unmarshal(jsonOf(t, v), &plain); err != nil {
		t.Fatal(err)
	}
	return plain
}

// TestOpenAPIProperties checks that examples have each property of each schema, and no other.
func TestOpenAPIProperties(t *testing.T) {
	for _, problem := range loadContract(t).propertyProblems(t) {
		t.Error(problem)
	}
}

// TestOpenAPIPropertiesAreMissed checks that TestOpenAPIProperties and TestOpenAPIExamples notice a
// property that is missing or misspelled.
func TestOpenAPIPropertiesAreMissed(t *testing.T) {
	t.Parallel()
	const get = "GET /v1/counters/{keyspace}/{id}"
	row := func(c *contract) *openapi3.Schema { return c.doc.Components.Schemas["Row"].Value }
	for name, test := range map[string]struct {
		change func(*contract)
		want   string
	}{
		"a property without an example": {
			func(c *contract) { row(c).Properties["color"] = &openapi3.SchemaRef{Value: openapi3.NewStringSchema()} },
			"no example has Row.color",
		},
		"one that the schema misspells": {
			func(c *contract) {
				page := c.doc.Components.Schemas["Page"].Value
				page.Properties["cursr"] = page.Properties["cursor"]
				delete(page.Properties, "cursor")
			},
			"no example has Page.cursr",
		},
		"one that an answer misspells": {
			func(c *contract) {
				answer := c.doc.Paths.Value("/v1/counters/{keyspace}/{id}").Get.Responses.Status(200).Value.Content["application/json"]
				answer.Example = map[string]any{"id": "1", "cuonts": map[string]any{}}
			},
			get + " 200 usual: Row has no property cuonts",
		},
		"one that a request misspells": {
			func(c *contract) {
				c.doc.Paths.Value("/v1/counters/{keyspace}/{id}").Put.RequestBody.Value.Content["application/json"].Example = map[string]any{"sett": 1}
			},
			"PUT /v1/counters/{keyspace}/{id} 200 usual: the request: RowSet has no property sett",
		},
		"one that an error in testdata misspells": {
			func(c *contract) {
				bad := c.Calls[get].Answers["400"]["bad_id"]
				bad.Value = map[string]any{"error": map[string]any{"code": "invalid_argument", "message": "m", "feild": "id"}}
				c.Calls[get].Answers["400"]["bad_id"] = bad
			},
			get + " 400 bad_id: Fault has no property feild",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := loadContract(t)
			test.change(c)
			if got := c.propertyProblems(t); !slices.Contains(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
	t.Run("one that a server misspells", func(t *testing.T) {
		c := loadContract(t)
		answer := contentOf(c.doc.Paths.Value("/v1/counters/{keyspace}/{id}").Get, 200)
		if got := newSeen(c.doc).see(answer, map[string]any{"id": "1", "cuonts": 1}); !slices.Equal(got, []string{"Row has no property cuonts"}) {
			t.Errorf("found %q", got)
		}
	})
}
