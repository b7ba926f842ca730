package api

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/valyala/fasthttp"

	"github.com/countd/countd/client"
)

// This file serves rare calls. The other calls parse bodies and append answers byte by byte,
// without allocation.

// nothing is the body of a call that needs no body: {} or nothing at all.
type nothing struct{}

// rare returns the handler of a call whose body is a B and whose answer is an A, both in JSON. It
// refuses a body that lacks a required member. The context of run ends at the request's
// deadline. It is not fasthttp's, which nothing may keep.
func rare[B, A any](run func(until context.Context, s *Server, r *request, body *B) (A, error), required ...string) handler {
	return func(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
		var body B
		if r.takes&takesBody != 0 {
			if err := decodeJSON(optional(ctx.Request.Body()), &body, required...); err != nil {
				return err
			}
		}
		until, cancel := context.WithDeadline(context.Background(), r.deadline)
		defer cancel()
		a, err := run(until, s, r, &body)
		if err != nil {
			return err
		}
		return answerJSON(ctx, a)
	}
}

// decodeJSON parses a body into a struct. It refuses members that the struct does not have, a
// member that is given twice or null, and a body without a required member.
func decodeJSON(text []byte, into any, required ...string) error {
	given := map[jsontext.Pointer]bool{}
	note := json.UnmarshalFromFunc(func(d *jsontext.Decoder, v any) error {
		if _, raw := v.(*jsontext.Value); !raw && d.PeekKind() == 'n' {
			return &memberError{problem: problemOf(reflect.TypeOf(v).Elem())}
		}
		given[d.StackPointer()] = true
		return errors.ErrUnsupported // the next unmarshaler reads the value
	})
	unmarshalers := json.JoinUnmarshalers(note, json.UnmarshalFromFunc(unmarshalColumn))
	if err := json.Unmarshal(text, into, json.RejectUnknownMembers(true), json.WithUnmarshalers(unmarshalers)); err != nil {
		return bodyFault(err, reflect.TypeOf(into))
	}
	for _, name := range required {
		if !given[jsontext.Pointer("/"+name)] {
			return invalid(name, missing)
		}
	}
	return nil
}

// memberError is returned for a value that a body may not have.
type memberError struct {
	member  string // name of the value's member; "" for the whole value
	problem string
}

func (e *memberError) Error() string { return e.problem }

// problemOf returns the problem of a value that does not fit a type.
func problemOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return problemOf(t.Elem())
	case reflect.String:
		return notString
	case reflect.Bool:
		return notBool
	case reflect.Slice:
		return notArray
	case reflect.Uint64:
		return notUint64
	case reflect.Int64:
		if t == reflect.TypeFor[noticeSeq]() {
			return notCount
		}
		return notInt64
	case reflect.Int:
		return "not an integer"
	case reflect.Uint32:
		return "not the number of a partition"
	}
	return notObject
}

// bodyFault returns the fault of a body that does not fit a type.
func bodyFault(err error, root reflect.Type) error {
	if semantic, ok := errors.AsType[*json.SemanticError](err); ok {
		path, problem := pathOf(semantic.JSONPointer, root), ""
		bad, isBad := errors.AsType[*memberError](err)
		switch {
		case isBad && bad.member != "":
			path, problem = path+"."+bad.member, bad.problem
		case isBad:
			problem = bad.problem
		case errors.Is(err, json.ErrUnknownName):
			problem = noField(membersOf(semantic.GoType)...)
		default:
			problem = problemOf(semantic.GoType)
		}
		return invalid(path, problem)
	}
	syntactic, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case ok && errors.Is(err, jsontext.ErrDuplicateName):
		return invalid(pathOf(syntactic.JSONPointer, root), givenTwice)
	case ok:
		return invalid("body", fmt.Sprintf("not valid JSON at byte %d: %v", syntactic.ByteOffset, syntactic.Err))
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
		path.WriteString(shown([]byte(token)))
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

// position is the text of a position in a queue: a number, or a string such as "1-2".
type position string

// UnmarshalJSON implements json.Unmarshaler.
func (p *position) UnmarshalJSON(text []byte) error {
	*p = position(strings.Trim(string(text), `"`))
	if *p == "" || strings.IndexByte(`"-0123456789`, text[0]) < 0 {
		return &memberError{problem: fmt.Sprintf("not a position: a number, or a string such as %q", "1-2")}
	}
	return nil
}

// unmarshalColumn parses a column: its name, or an object with its name and its floor, null for
// none.
func unmarshalColumn(d *jsontext.Decoder, c *client.Column) error {
	if d.PeekKind() != '{' {
		return json.UnmarshalDecode(d, &c.Name)
	}
	var of struct {
		Name  *string        `json:"name"`
		Floor jsontext.Value `json:"floor"`
	}
	if err := json.UnmarshalDecode(d, &of); err != nil {
		return err
	}
	if of.Name == nil {
		return &memberError{"name", missing}
	}
	c.Name, c.NoFloor = *of.Name, string(of.Floor) == "null"
	if len(of.Floor) == 0 || c.NoFloor {
		return nil
	}
	floor, err := strconv.ParseInt(string(of.Floor), 10, 64)
	if err != nil {
		return &memberError{"floor", notInt64}
	}
	c.Floor = &floor
	return nil
}
