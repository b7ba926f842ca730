package api

import (
	"fmt"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// seenProperties has the properties of schemas that examples have.
type seenProperties struct {
	names map[*openapi3.Schema]string // of components
	seen  map[*openapi3.Schema]map[string]bool
}

func newSeen(doc *openapi3.T) *seenProperties {
	s := &seenProperties{map[*openapi3.Schema]string{}, map[*openapi3.Schema]map[string]bool{}}
	for name, ref := range doc.Components.Schemas {
		s.names[ref.Value] = name
	}
	return s
}

// see notes what properties a value has, and returns those that its schema lacks.
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
				*problems = append(*problems, fmt.Sprintf("%s has no property %s", strings.TrimPrefix(at, "."), name))
			}
		}
	}
}
