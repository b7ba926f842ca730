package operate

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/internal/strictjson"
)

// Typed is implemented by types of numbers with an error text of their own, such as notice numbers.
type Typed interface {
	// Problem returns why a value is not of the type.
	Problem() string
}

func faultAt(path, problem string) error { return &strictjson.FieldError{Path: path, Problem: problem} }

// Decode parses a body into a struct. It refuses a member that the struct does not have, a member
// that occurs twice, a null, and a body without a required member.
func Decode(text []byte, into any, required ...string) error {
	given := map[jsontext.Pointer]bool{}
	note := json.UnmarshalFromFunc(func(d *jsontext.Decoder, v any) error {
		if _, raw := v.(*jsontext.Value); !raw && d.PeekKind() == 'n' {
			return &MemberError{Problem: problemOf(reflect.TypeOf(v).Elem())}
		}
		given[d.StackPointer()] = true
		return errors.ErrUnsupported // the decoder then decodes the value as usual
	})
	unmarshalers := json.JoinUnmarshalers(note, json.UnmarshalFromFunc(unmarshalColumn))
	if err := json.Unmarshal(text, into, json.RejectUnknownMembers(true), json.WithUnmarshalers(unmarshalers)); err != nil {
		return bodyFault(err, reflect.TypeOf(into))
	}
	for _, name := range required {
		if !given[jsontext.Pointer("/"+name)] {
			return faultAt(name, strictjson.Missing)
		}
	}
	return nil
}

// MemberError is returned for a value that is not allowed in a body.
type MemberError struct {
	Member  string // name of the value's member; "" for the whole value
	Problem string
}

func (e *MemberError) Error() string { return e.Problem }

// problemOf returns the problem of a value that does not fit the type t.
func problemOf(t reflect.Type) string {
	if t == reflect.TypeFor[client.ID]() {
		return strictjson.NotUint64
	}
	switch t.Kind() {
	case reflect.Pointer:
		return problemOf(t.Elem())
	case reflect.String:
		return strictjson.NotString
	case reflect.Bool:
		return strictjson.NotBool
	case reflect.Slice:
		return strictjson.NotArray
	case reflect.Uint64:
		return strictjson.NotUint64
	case reflect.Int64:
		if own, is := reflect.Zero(t).Interface().(Typed); is {
			return own.Problem()
		}
		return strictjson.NotInt64
	case reflect.Int:
		return "not an integer"
	case reflect.Uint32:
		return "not the number of a partition"
	}
	return strictjson.NotObject
}

// bodyFault returns the fault of a body that does not fit a type.
func bodyFault(err error, root reflect.Type) error {
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		path, problem := pathOf(semantic.JSONPointer, root), ""
		bad, isBad := errors.AsType[*MemberError](err)
		switch {
		case isBad && bad.Member != "":
			path, problem = path+"."+bad.Member, bad.Problem
		case isBad:
			problem = bad.Problem
		case errors.Is(err, json.ErrUnknownName):
			problem = NoField(membersOf(semantic.GoType)...)
		default:
			problem = problemOf(semantic.GoType)
		}
		return faultAt(path, problem)
	}
	syntactic, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case ok && errors.Is(err, jsontext.ErrDuplicateName):
		return faultAt(pathOf(syntactic.JSONPointer, root), strictjson.GivenTwice)
	case ok:
		return faultAt("body", fmt.Sprintf("not valid JSON at byte %d: %v", syntactic.ByteOffset, syntactic.Err))
	}
	return err
}

// pathOf returns the path of a value in a body of a type, such as grants[0].role.
func pathOf(p jsontext.Pointer, t reflect.Type) string {
	var path strings.Builder
	for token := range p.Tokens() {
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t != nil && t.Kind() == reflect.Slice {
			fmt.Fprintf(&path, "[%s]", token)
			t = t.Elem()
			continue
		}
		if path.Len() > 0 {
			path.WriteByte('.')
		}
		path.WriteString(Shown([]byte(token)))
		t = memberType(t, token)
	}
	if path.Len() == 0 {
		return "body"
	}
	return path.String()
}

// memberType returns the type of a member of a struct, or nil if it is not known.
func memberType(t reflect.Type, name string) reflect.Type {
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		if memberName(f) == name {
			return f.Type
		}
	}
	return nil
}

// membersOf returns the names of a struct's members in JSON.
func membersOf(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name := memberName(f); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func memberName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// unmarshalColumn parses a column: its name, or an object with its name and its settings. A
// setting may be null.
func unmarshalColumn(d *jsontext.Decoder, c *column.Column) error {
	if d.PeekKind() != '{' {
		return json.UnmarshalDecode(d, &c.Name)
	}
	var members map[string]jsontext.Value
	if err := json.UnmarshalDecode(d, &members); err != nil {
		return err
	}
	known := []string{"name"}
	for _, which := range column.All() {
		known = append(known, which.String())
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.Contains(known, name) {
			return &MemberError{Shown([]byte(name)), NoField(known...)}
		}
	}
	name, named := members["name"]
	switch {
	case !named:
		return &MemberError{"name", strictjson.Missing}
	case name.Kind() != '"' || json.Unmarshal(name, &c.Name) != nil:
		return &MemberError{"name", strictjson.NotString}
	}
	for _, which := range column.All() {
		text, given := members[which.String()]
		switch value, err := strconv.ParseInt(string(text), 10, 64); {
		case !given:
		case string(text) == "null":
			c.Set(which, nil)
		case err != nil:
			return &MemberError{which.String(), strictjson.NotInt64}
		default:
			c.Set(which, &value)
		}
	}
	return nil
}

// Shown returns a client's text for an error message: at most 64 bytes of it, and two quotes for an
// empty text.
func Shown(text []byte) string {
	const shownMax = 64
	if len(text) == 0 {
		return `""`
	}
	if len(text) > shownMax {
		return string(text[:shownMax]) + "…"
	}
	return string(text)
}

// NoField returns the problem of an unknown field, with the fields that the object may have.
func NoField(known ...string) string {
	switch len(known) {
	case 0:
		return strictjson.NoSuchField
	case 1:
		return strictjson.NoSuchField + "; there is only " + known[0]
	}
	return strictjson.NoSuchField + "; there are " + Listed(known)
}

// listedMax bounds the names in a message.
const listedMax = 20

// Listed returns names for a message.
func Listed(names []string) string {
	more := ""
	if n := len(names) - listedMax; n > 0 {
		names, more = names[:listedMax], fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ") + more
}
